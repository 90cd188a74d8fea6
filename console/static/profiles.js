// The form of a profile: marks fields that are wrong as the check says, and keeps what is typed until it was saved, so
// that neither a session that ran out nor a closed tab loses it. Drafts live in this browser tab's storage only.
(() => {
  "use strict";
  const KEPT = "ingot-draft:";

  // ---- what the console says was saved ------------------------------------------------------------------------
  const saved = document.cookie.match(/(?:^|; )ingot-saved=([^;]*)/)?.[1];
  if (saved) {
    sessionStorage.removeItem(KEPT + saved.replace(/^"|"$/g, ""));
    document.cookie = "ingot-saved=; path=/profiles; max-age=0; samesite=strict";
  }

  const form = document.querySelector("#profile-form");
  if (!form) return;
  const key = KEPT + form.dataset.draft;
  const view = form.elements.view.value;

  // ---- drafts -------------------------------------------------------------------------------------------------
  function typed() {
    return Object.fromEntries([...new FormData(form)].filter(([, value]) => typeof value === "string"));
  }

  function keep() {
    sessionStorage.setItem(key, JSON.stringify(typed()));
  }

  function differs(draft, present) {
    return Object.keys({ ...draft, ...present }).some((name) => name !== "base" && (draft[name] ?? "") !== (present[name] ?? ""));
  }

  function restore(draft) {
    if (draft.view !== view) return showOtherView(draft);
    for (const [name, value] of Object.entries(draft)) {
      const field = form.elements.namedItem(name);
      if (field && "value" in field) field.value = value;
    }
    for (const group of form.querySelectorAll("details.settings")) {
      group.open ||= [...group.querySelectorAll("input, select, textarea")].some((field) => field.value);
    }
    document.querySelector("[data-draft-restored]").hidden = false;
    form.dispatchEvent(new Event("change", { bubbles: true }));
  }

  // A draft of the YAML cannot be put into fields: the console shows the form in the draft's view.
  function showOtherView(draft) {
    for (const field of form.querySelectorAll("[name]")) field.disabled = true;
    for (const [name, value] of Object.entries({ ...draft, show: draft.view })) {
      const field = document.createElement("textarea");
      field.name = name;
      field.value = value;
      field.hidden = true;
      form.append(field);
    }
    form.submit();
  }

  const kept = JSON.parse(sessionStorage.getItem(key) || "null");
  if (form.dataset.sent === "yes") keep();
  else if (kept && differs(kept, typed())) restore(kept);

  form.addEventListener("input", keep);
  form.addEventListener("change", keep);
  document.addEventListener("click", (event) => {
    if (event.target.closest("[data-draft-forget], [data-draft-discard]")) sessionStorage.removeItem(key);
    if (event.target.closest("[data-draft-discard]")) location.assign(location.pathname + location.search);
  });

  // ---- marks --------------------------------------------------------------------------------------------------
  document.addEventListener("htmx:afterSettle", () => {
    for (const note of form.querySelectorAll(".setting-note")) {
      const setting = note.closest(".setting");
      const wrong = note.hasAttribute("data-wrong");
      setting.classList.toggle("field-wrong", wrong);
      const field = setting.querySelector("input, select, textarea");
      if (wrong) field.setAttribute("aria-invalid", "true");
      else field.removeAttribute("aria-invalid");
    }
  });

  // ---- the YAML's text area -----------------------------------------------------------------------------------
  const yaml = form.querySelector("#yaml");
  yaml?.addEventListener("keydown", (event) => {
    if (event.key !== "Enter" || event.isComposing || event.ctrlKey || event.metaKey) return;
    const before = yaml.value.slice(0, yaml.selectionStart);
    const line = before.slice(before.lastIndexOf("\n") + 1);
    const indent = line.match(/^ */)[0] + (/:\s*$/.test(line) ? "  " : "");
    if (!indent) return;
    event.preventDefault();
    yaml.setRangeText(`\n${indent}`, yaml.selectionStart, yaml.selectionEnd, "end");
    yaml.dispatchEvent(new Event("input", { bubbles: true }));
  });
})();
