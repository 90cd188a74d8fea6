// The log's page: lines as they are written, search, filters, pause. Without it the page is a plain tail with a form.

import { LogSearch } from "./log-search.js";
import { LineStore } from "./log-store.js";
import { LogView } from "./log-view.js";

const $ = (id) => document.getElementById(id);
const viewport = $("log-view");
if (viewport) start();

function start() {
  const { launch, follows, total, position, line } = viewport.dataset;
  const topic = `log:${follows ? "current" : launch}`;
  let store = new LineStore(launch, Number(total));
  let unfinished = null; // a line that the engine is still writing
  let paused = false;
  let seenAtPause = 0;
  let toPoint = false; // a search was begun: its last match is to be pointed at once it is known
  const search = new LogSearch(() => {
    processes(search.processes);
    if (toPoint && search.matches.length) {
      toPoint = false;
      step(-1, true);
    }
    view.changed();
    say();
  });

  const count = () => (paused ? seenAtPause : store.total + (unfinished ? 1 : 0));
  const all = {
    get count() { return count(); },
    number: (row) => row + 1,
    row: (number) => (number >= 1 && number <= count() ? number - 1 : -1),
  };
  const filtered = {
    get count() { return paused ? lowerBound(search.shown, seenAtPause + 1) : search.shown.length; },
    number: (row) => search.shown[row],
    row: (number) => Math.min(lowerBound(search.shown, number), search.shown.length - 1),
  };

  const rows = () => (search.shown ? filtered : all);

  for (const node of document.querySelectorAll("[data-scripted]")) node.hidden = false;
  for (const node of document.querySelectorAll("[data-unscripted]")) node.hidden = true;
  viewport.querySelector(".log-nothing")?.remove();
  const view = new LogView(viewport, { store, rows: all, onScrolled: say });

  // ---- the stream ----------------------------------------------------------------------------------------------
  ingot.live.on(topic, (data) => receive(JSON.parse(data)), position);
  document.addEventListener("ingot:connection", (event) => event.detail.lost || view.changed());

  function receive(frame) {
    if (frame.kind === "launch") return switchTo(frame.launch);
    if (frame.launch !== store.launch) return;
    if (frame.kind === "unfinished") {
      if (frame.line.number !== store.total + 1) return;
      unfinished = frame.line;
      store.put([unfinished]);
    } else {
      if (unfinished) store.lines.delete(unfinished.number);
      unfinished = null;
      if (frame.first === 1) store.lines.clear(); // the file was begun anew
      store.total = frame.last;
      store.put(frame.lines);
    }
    numberWidth();
    search.go(store);
    view.changed();
    say();
  }

  function switchTo(next) {
    store = new LineStore(next, 0);
    unfinished = null;
    paused = false;
    search.begin(search.filter);
    view.following = true;
    view.show({ store, rows: rows() });
    pauseButton();
    say();
    showHead();
    ingot.toast("The engine restarted. This is the log of the new launch.");
  }

  // The head says how the launch stands, and the list of launches how each ended; `recent` comes whenever that may have changed.
  function showHead() {
    const query = new URLSearchParams({ launch: store.launch, follows: !!follows });
    // The options are new, and a browser then chooses the last of them.
    const choose = () => { $("log-launch").value = follows ? "current" : store.launch; };
    // Where the console is away it comes with the next `recent`, which follows a new connection.
    htmx.ajax("GET", `/log/head?${query}`, "#log-head").then(choose, () => {});
  }
  ingot.live.on("recent", showHead);

  function numberWidth() {
    viewport.style.setProperty("--digits", Math.max(4, String(store.total).length));
  }

  // ---- search and filters --------------------------------------------------------------------------------------
  const readFilter = () => ({ q: $("log-query").value, level: $("log-level").value, process: $("log-process").value });

  function look() {
    const filter = readFilter();
    const url = new URL(location);
    for (const [name, value] of Object.entries(filter)) {
      if (value) url.searchParams.set(name, value);
      else url.searchParams.delete(name);
    }
    history.replaceState(null, "", url);
    search.begin(filter);
    view.highlight(filter.q);
    view.show({ rows: rows() });
    say();
    toPoint = !!filter.q;
    search.go(store);
  }

  function processes(names) {
    const select = $("log-process");
    const known = new Set([...select.options].map((option) => option.value));
    for (const name of names) if (!known.has(name)) select.add(new Option(name, name));
    if (select.options.length > 2) select.hidden = false;
  }

  function step(by, last = false) {
    const number = search.step(by, last);
    if (number) view.pointAt(number);
    say();
  }

  let typing = 0;
  $("log-query").addEventListener("input", () => {
    clearTimeout(typing);
    typing = setTimeout(look, 200);
  });
  $("log-query").addEventListener("keydown", (event) => {
    if (event.key !== "Enter") return;
    event.preventDefault();
    if (readFilter().q !== search.filter.q) look();
    else step(event.shiftKey ? -1 : 1);
  });
  for (const id of ["log-level", "log-process"]) $(id).addEventListener("change", look);
  $("log-launch").addEventListener("change", (event) => {
    location.assign(`/log?launch=${encodeURIComponent(event.target.value)}`);
  });
  $("log-previous").addEventListener("click", () => step(-1));
  $("log-next").addEventListener("click", () => step(1));
  viewport.closest(".log").querySelector("form").addEventListener("submit", (event) => event.preventDefault());

  // ---- pause, end, wrap, copy ----------------------------------------------------------------------------------
  function pause(on) {
    seenAtPause = store.total;
    paused = on;
    pauseButton();
    view.following = !on && view.following;
    if (!on) view.toEnd();
    say();
  }

  function pauseButton() {
    const button = $("log-pause");
    button.setAttribute("aria-pressed", paused);
    setText(button.querySelector("span"), paused ? "Resume" : "Pause");
    const fresh = paused ? store.total - seenAtPause : 0;
    const words = fresh ? `${fresh.toLocaleString("en")} new ${fresh === 1 ? "line" : "lines"}` : "To the end";
    setText($("log-end").querySelector("span"), words);
  }

  function wrap(on) {
    $("log-wrap").setAttribute("aria-pressed", on);
    localStorage.setItem("ingot-log-wrap", on ? "yes" : "");
    view.wrap(on);
  }

  async function copyShown() {
    const most = 2000;
    const all = rows();
    const from = Math.max(0, all.count - most);
    const numbers = [];
    for (let row = from; row < all.count; row++) numbers.push(all.number(row));
    for (let tries = 0; tries < 8 && numbers.some((number) => !store.get(number)); tries++) await store.need(numbers);
    const text = numbers.map((number) => store.get(number)).filter(Boolean).map(lineText).join("\n");
    await navigator.clipboard.writeText(`${text}\n`);
    const said = from ? `Copied the last ${most.toLocaleString("en")} lines. The download has all of them.` : "Copied.";
    ingot.toast(said);
  }

  $("log-pause").addEventListener("click", () => pause(!paused));
  $("log-end").addEventListener("click", () => (paused ? pause(false) : view.toEnd()));
  $("log-wrap").addEventListener("click", () => wrap($("log-wrap").getAttribute("aria-pressed") !== "true"));
  $("log-copy").addEventListener("click", () =>
    copyShown().catch(() => ingot.toast("The lines could not be copied. Select them, or download the log.", "bad")),
  );
  document.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey || document.querySelector("dialog[open]")) return;
    if (event.target.matches("input, textarea, select")) return;
    const deeds = { p: () => pause(!paused), w: () => $("log-wrap").click(), n: () => step(1), N: () => step(-1), e: () => view.toEnd() };
    deeds[event.key]?.();
  });

  // ---- what is said about it -----------------------------------------------------------------------------------
  let saying = 0;
  function say() {
    saying ||= requestAnimationFrame(() => {
      saying = 0;
      const words = [`${store.total.toLocaleString("en")} ${store.total === 1 ? "line" : "lines"}`];
      if (search.shown) words.unshift(`${rows().count.toLocaleString("en")} shown of`);
      setText($("log-state"), words.join(" "));
      if (paused) pauseButton();
      setText($("log-count"), search.words(store.total));
      for (const id of ["log-previous", "log-next"]) $(id).disabled = !search.matches.length;
      $("log-end").hidden = view.following || (!paused && view.atEnd);
    });
  }

  // ---- begin ---------------------------------------------------------------------------------------------------
  const keys = document.querySelector("#keys dl");
  for (const [key, words] of [["p", "pause the log"], ["w", "wrap long lines"], ["n", "next match"], ["N", "previous match"], ["e", "to the end"]]) {
    const pair = document.createElement("div");
    pair.innerHTML = "<dt><kbd></kbd></dt><dd></dd>";
    pair.querySelector("kbd").textContent = key;
    pair.querySelector("dd").textContent = words;
    keys?.append(pair);
  }
  numberWidth();
  if (localStorage.getItem("ingot-log-wrap")) wrap(true);
  const asked = Number(line) || Number(/^#L(\d+)$/.exec(location.hash)?.[1]);
  if (Object.values(readFilter()).some(Boolean)) look();
  else if (asked) view.pointAt(asked);
  else view.toEnd();
  addEventListener("hashchange", () => {
    const number = Number(/^#L(\d+)$/.exec(location.hash)?.[1]);
    if (number) view.pointAt(number);
  });
}

function lineText(line) {
  return line.segments.map(([text]) => text).join("");
}

function setText(node, text) {
  if (node.textContent !== text) node.textContent = text;
}

// The first index whose number is not below `wanted`.
function lowerBound(numbers, wanted) {
  let low = 0;
  let high = numbers.length;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (numbers[middle] < wanted) low = middle + 1;
    else high = middle;
  }
  return low;
}
