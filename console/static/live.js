// One event stream for all live parts of a page: `<div data-live="topic">` gets the topic's HTML; scripts listen with
// ingot.live.on(topic, (data, position) => ...). It closes while the page is hidden and continues each feed where it was.
(() => {
  "use strict";
  const handlers = new Map(); // topic -> [function]
  const positions = new Map(); // topic -> id of the last item, for feeds
  const RETRY_MS = [500, 1000, 2000, 5000];
  let source = null;
  let retries = 0;
  let timer = 0;
  let heard = Date.now(); // when the console said something last
  let asked = heard; // when the stream was opened
  let silent = false;
  const SILENT_MS = 15000; // it says at least something every 5 s

  function topics() {
    const parts = [...document.querySelectorAll("[data-live]")].map((part) => part.dataset.live);
    return [...new Set([...parts, ...handlers.keys()])].sort();
  }

  function receive(topic, event) {
    heard = Date.now();
    if (event.lastEventId) positions.set(topic, event.lastEventId);
    for (const part of document.querySelectorAll("[data-live]")) {
      if (part.dataset.live === topic) show(part, event.data);
    }
    for (const handler of handlers.get(topic) || []) handler(event.data, event.lastEventId);
  }

  // Only what differs is changed: a button that is being pressed, a selection, an open menu stay as they are.
  function show(part, html) {
    Idiomorph.morph(part, html, { morphStyle: "innerHTML", callbacks: { beforeAttributeUpdated: keep } });
    htmx.process(part);
    document.dispatchEvent(new CustomEvent("ingot:shown", { detail: part }));
  }

  // What a person did to an element, the server does not undo.
  function keep(name, element) {
    return !(name === "open" && element.localName === "details") && name !== "aria-busy";
  }

  function open() {
    close();
    const wanted = topics();
    if (!wanted.length || document.hidden) return;
    const query = new URLSearchParams();
    for (const topic of wanted) {
      query.append("topic", positions.has(topic) ? `${topic}@${positions.get(topic)}` : topic);
    }
    source = new EventSource(`/live?${query}`);
    asked = Date.now();
    source.onopen = () => {
      heard = Date.now();
      retries = 0;
      lost(false);
    };
    source.addEventListener("alive", () => (heard = Date.now()));
    source.onerror = () => {
      close();
      lost(true);
      timer = setTimeout(open, RETRY_MS[Math.min(retries++, RETRY_MS.length - 1)]);
    };
    for (const topic of wanted) source.addEventListener(topic, (event) => receive(topic, event));
  }

  function close() {
    clearTimeout(timer);
    source?.close();
    source = null;
  }

  function lost(is) {
    silent = is;
    document.documentElement.classList.toggle("lost", is);
    for (const mark of document.querySelectorAll("[data-live-lost]")) mark.hidden = !is;
    for (const button of document.querySelectorAll(is ? "[data-live] button:enabled" : "[data-live] button[data-off]")) {
      button.disabled = is;
      button.toggleAttribute("data-off", is);
    }
    document.dispatchEvent(new CustomEvent("ingot:connection", { detail: { lost: is } }));
  }

  function on(topic, handler, position) {
    if (position && !positions.has(topic)) positions.set(topic, String(position));
    handlers.set(topic, [...(handlers.get(topic) || []), handler]);
    if (source) open();
  }

  function off(topic) {
    handlers.delete(topic);
    positions.delete(topic);
    if (source) open();
  }

  // A network that was cut says nothing: silence is what is noticed.
  setInterval(() => {
    if (!source || silent || Date.now() - Math.max(heard, asked) < SILENT_MS) return;
    lost(true);
    open();
  }, 1000);

  // Nothing is sent to a console that is away: the browser would leave the page for one of its own.
  document.addEventListener(
    "submit",
    (event) => {
      if (!silent || event.target.method === "dialog") return;
      event.preventDefault();
      event.stopImmediatePropagation();
      ingot.toast("The console cannot be reached. Try again when it is back.", "bad");
    },
    true,
  );

  document.addEventListener("visibilitychange", () => (document.hidden ? close() : open()));
  addEventListener("pagehide", close);
  addEventListener("pageshow", () => source || open());
  addEventListener("online", open);
  document.addEventListener("DOMContentLoaded", open);

  window.ingot = { ...window.ingot, live: { on, off, lost: () => silent, heard: () => heard } };
})();
