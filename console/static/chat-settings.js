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
    const good = field.validity.valid && !(field.name === "top_p" && field.value !== "" && Number(field.value) <= 0);
    field.parentElement.classList.toggle("field-wrong", !good);
    field.setAttribute("aria-invalid", !good);
    about.textContent = good ? about.dataset.about : `Use ${wanted(field)}.`;
    return good;
  }
}

function wanted(field) {
  const kind = field.step === "1" ? "a whole number" : "a number";
  if (field.name === "top_p") return "a number above 0, at most 1";
  return Number(field.max) > 1e6 ? `${kind}${Number(field.min) < 0 ? "" : ` from ${field.min}`}` : `${kind} from ${field.min} to ${field.max}`;
}
