// What every page has: toasts, the confirm dialog, copying, times that stay current, the theme switch, keys.
(() => {
  "use strict";
  const $ = (selector, root = document) => root.querySelector(selector);

  // ---- toasts -------------------------------------------------------------------------------------------------
  function toast(text, tone = "good") {
    const node = document.createElement("div");
    node.className = `toast toast-${tone}`;
    node.textContent = text;
    $("#toasts").append(node);
    fade(node);
  }

  function fade(node) {
    const bad = node.classList.contains("toast-bad");
    setTimeout(() => node.remove(), bad ? 12000 : 5000);
    node.addEventListener("click", () => node.remove());
  }

  document.querySelectorAll("#toasts .toast").forEach(fade);
  document.addEventListener("toast", (event) => toast(event.detail.text || event.detail.value, event.detail.tone));
  document.addEventListener("htmx:responseError", (event) => {
    const page = new DOMParser().parseFromString(event.detail.xhr.responseText, "text/html");
    toast($(".refusal", page)?.textContent.trim() || `The console answered with status ${event.detail.xhr.status}.`, "bad");
  });
  document.addEventListener("htmx:sendError", () => {
    toast("The console cannot be reached. Your input is still here; try again when it is back.", "bad");
  });

  // ---- confirm ------------------------------------------------------------------------------------------------
  function confirm(text, verb = "Continue") {
    const dialog = $("#confirm");
    $("#confirm-text").textContent = text;
    $("[data-confirm-yes]", dialog).textContent = verb;
    dialog.returnValue = "no";
    dialog.showModal();
    return new Promise((answer) => {
      dialog.addEventListener("close", () => answer(dialog.returnValue === "yes"), { once: true });
    });
  }

  document.addEventListener("submit", async (event) => {
    const asker = event.submitter?.dataset.confirm ? event.submitter : event.target;
    if (!asker.dataset.confirm || event.target.dataset.confirmed || event.target.matches("[hx-post], [hx-delete]")) return;
    event.preventDefault();
    if (!(await confirm(asker.dataset.confirm, asker.dataset.confirmVerb))) return;
    event.target.dataset.confirmed = "yes";
    event.target.requestSubmit(event.submitter);
  });
  document.addEventListener("htmx:confirm", async (event) => {
    const text = event.target.dataset.confirm;
    if (!text) return;
    event.preventDefault();
    if (await confirm(text, event.target.dataset.confirmVerb)) event.detail.issueRequest(true);
  });

  // ---- what ends requests asks when, where some are running ------------------------------------------------------
  const ending = $("#end-requests");
  const inFlight = () => Number($(".strip [data-requests]")?.dataset.requests || 0);

  function countRequests() {
    const count = inFlight();
    $("[data-end-count]", ending).textContent = `${count ? count.toLocaleString("en") : "No"} ${count === 1 ? "request is" : "requests are"}`;
  }

  document.addEventListener("submit", (event) => {
    const form = event.target;
    const what = event.submitter?.dataset.endsRequests ?? form.dataset.endsRequests;
    if (event.defaultPrevented || what === undefined || form.querySelector("[name=when]") || !inFlight()) return;
    event.preventDefault();
    $("[data-end-title]", ending).textContent = `${what}?`;
    countRequests();
    ending.returnValue = "";
    ending.addEventListener(
      "close",
      () => {
        if (!ending.returnValue) return;
        const when = Object.assign(document.createElement("input"), { type: "hidden", name: "when", value: ending.returnValue });
        form.append(when);
        form.requestSubmit(event.submitter);
      },
      { once: true },
    );
    ending.showModal();
  });
  document.addEventListener("ingot:shown", () => ending?.open && countRequests());
  addEventListener("pageshow", () => document.querySelectorAll("form > input[name=when]").forEach((input) => input.remove()));

  // A form is sent once, and its button says that it works.
  document.addEventListener("submit", (event) => {
    if (event.defaultPrevented || event.target.method === "dialog" || event.target.hasAttribute("hx-post")) return;
    event.submitter?.setAttribute("aria-busy", "true");
  });
  addEventListener("pageshow", () => {
    document.querySelectorAll("button[aria-busy]").forEach((button) => button.removeAttribute("aria-busy"));
  });

  // ---- copy ---------------------------------------------------------------------------------------------------
  document.addEventListener("click", async (event) => {
    const button = event.target.closest("[data-copy], [data-copy-from]");
    if (!button) return;
    const text = button.dataset.copy ?? $(button.dataset.copyFrom).textContent;
    if (await copy(text)) toast("Copied.");
    else toast("The browser does not allow copying here. Select the text and copy it yourself.", "bad");
  });

  async function copy(text) {
    if (navigator.clipboard) {
      return navigator.clipboard.writeText(text).then(() => true, () => false);
    }
    const area = document.createElement("textarea"); // plain HTTP away from loopback has no clipboard
    area.value = text;
    document.body.append(area);
    area.select();
    const done = document.execCommand("copy");
    area.remove();
    return done;
  }

  // ---- times --------------------------------------------------------------------------------------------------
  function span(seconds) {
    if (seconds < 60) return `${Math.floor(seconds)} s`;
    const minutes = Math.floor(seconds / 60);
    if (minutes < 60) return `${minutes} min ${String(Math.floor(seconds % 60)).padStart(2, "0")} s`;
    const hours = Math.floor(minutes / 60);
    if (hours < 24) return `${hours} h ${String(minutes % 60).padStart(2, "0")} min`;
    return `${Math.floor(hours / 24)} d ${hours % 24} h`;
  }

  function largest(seconds) {
    for (const [unit, scale] of [["d", 86400], ["h", 3600], ["min", 60]]) {
      if (seconds >= scale) return `${Math.floor(seconds / scale)} ${unit}`;
    }
    return `${Math.floor(seconds)} s`;
  }

  // While the console is away, what it said last stands still, and says how old it is.
  function tick() {
    const now = Date.now() / 1000;
    const lost = ingot.live.lost();
    const age = Math.max(0, now - ingot.live.heard() / 1000);
    for (const node of document.querySelectorAll("time[data-last-known]")) {
      node.textContent = `${span(age)} ago`;
    }
    for (const node of document.querySelectorAll("time[data-since]")) {
      if (lost && node.textContent && node.closest("[data-live]")) continue;
      node.textContent = span(Math.max(0, now - node.dataset.since));
    }
    for (const node of document.querySelectorAll("time[data-until]")) {
      if (lost && node.textContent) continue;
      node.textContent = span(Math.max(0, node.dataset.until - now));
    }
    for (const node of document.querySelectorAll("time[data-ago]")) {
      const past = now - node.dataset.ago;
      node.textContent = past < 5 ? "just now" : `${largest(past)} ago`;
    }
  }

  setInterval(() => document.hidden || tick(), 1000);
  document.addEventListener("ingot:shown", tick);
  document.addEventListener("ingot:connection", tick);

  // ---- theme --------------------------------------------------------------------------------------------------
  document.addEventListener("click", (event) => {
    if (!event.target.closest("[data-theme-switch]")) return;
    const themes = ["auto", "light", "dark"];
    const root = document.documentElement;
    const theme = themes[(themes.indexOf(root.dataset.theme) + 1) % themes.length];
    root.dataset.theme = theme;
    document.cookie = `ingot-theme=${theme}; path=/; max-age=31536000; samesite=strict`;
    toast({ auto: "Theme: follows the system.", light: "Theme: light.", dark: "Theme: dark." }[theme]);
    document.dispatchEvent(new CustomEvent("ingot:theme"));
  });

  // ---- keys ---------------------------------------------------------------------------------------------------
  let going = false;
  document.addEventListener("click", (event) => {
    if (event.target.closest("[data-show-keys]")) $("#keys").showModal();
  });
  document.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey || $("dialog[open]")) return;
    const typing = event.target.matches("input, textarea, select, [contenteditable]");
    if (event.key === "Escape" && typing) return event.target.blur();
    if (typing) return;
    if (going) {
      going = false;
      const place = $(`.rail [data-key="${CSS.escape(event.key)}"]`);
      if (place) location.assign(place.href);
    } else if (event.key === "g") {
      going = true;
      setTimeout(() => (going = false), 1200);
    } else if (event.key === "?") {
      $("#keys").showModal();
    } else if (event.key === "/") {
      const search = $("[data-search]");
      if (search) {
        event.preventDefault();
        search.focus();
        search.select();
      }
    }
  });

  window.ingot = { ...window.ingot, toast, confirm };
})();
