// The sampling settings: what is left empty is not sent, so that the profile's defaults hold.

const NUMBERS = ["temperature", "max_tokens", "top_p", "top_k", "seed"];

export class Settings {
  constructor(form, onChange) {
    this.form = form;
    form.addEventListener("input", (event) => this.#check(event.target));
    form.addEventListener("change", onChange);
    form.addEventListener("submit", (event) => event.preventDefault());
    form.addEventListener("reset", () => setTimeout(() => {
      this.check();
      onChange();
    }));
  }

  get system() {
    return this.form.elements.system.value.trim();
  }

  // The fields of the request.
  get sampling() {
    const fields = {};
    for (const name of NUMBERS) {
      const { value } = this.form.elements[name];
      if (value !== "") fields[name] = Number(value);
    }
    const stops = this.form.elements.stop.value.split("\n").filter(Boolean);
    if (stops.length) fields.stop = stops;
    return fields;
  }

  get values() {
    return Object.fromEntries([...this.form.elements].filter((field) => field.name).map((field) => [field.name, field.value]));
  }

  set values(values) {
    for (const [name, value] of Object.entries(values)) {
      if (this.form.elements[name]) this.form.elements[name].value = value;
    }
    this.check();
  }

  // Whether every value can be used; what cannot is said under its field.
  check() {
    return [...this.form.elements].filter((field) => field.name).map((field) => this.#check(field)).every(Boolean);
  }

  #check(field) {
    const about = field.parentElement.querySelector("[data-about]");
    if (!about) return true;
    const good = usable(field);
    field.parentElement.classList.toggle("field-wrong", !good);
    field.setAttribute("aria-invalid", !good);
    about.textContent = good ? about.dataset.about : about.dataset.wanted;
    return good;
  }
}

function usable(field) {
  if (!field.validity.valid) return false;
  if (field.value === "") return true;
  const value = Number(field.value);
  // A browser's own check of the step loses fractions where the range is that of all whole numbers.
  if (field.step === "1" && !Number.isSafeInteger(value)) return false;
  return !field.dataset.above || value > Number(field.dataset.above);
}
