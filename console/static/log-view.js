// Shows a window onto any number of log lines: only the rows in sight, and a few around them, are elements.
// What the rows are is up to `rows`: {count, number(row), row(number)}; their content is up to the store.

import { rowElement } from "./log-row.js";
import { RowHeights } from "./log-rows.js";

const AROUND = 12; // rows that are made above and below those in sight
const TALLEST = 12_000_000; // pixels that every browser can scroll; a longer list is scrolled in proportion

export class LogView {
  constructor(viewport, { store, rows, onScrolled }) {
    this.viewport = viewport;
    this.lines = viewport.querySelector(".log-lines");
    this.store = store;
    this.rows = rows;
    this.onScrolled = onScrolled;
    this.heights = new RowHeights(this.#measureBase());
    this.made = new Map(); // line number -> element
    this.query = "";
    this.current = 0; // the line that a search or a link points at
    this.reveal = false; // its match is still to be scrolled to, sideways
    this.following = false;
    this.frame = 0;
    this.lines.textContent = "";
    this.spacer = document.createElement("div");
    this.spacer.className = "log-spacer";
    viewport.prepend(this.spacer);
    viewport.classList.add("log-windowed");
    viewport.addEventListener("scroll", () => this.#scrolled(), { passive: true });
    new ResizeObserver(() => this.#resized()).observe(viewport);
  }

  #measureBase() {
    const row = rowElement("", { number: 1, level: "other", segments: [["x", ""]] }, "");
    this.lines.append(row);
    const height = row.getBoundingClientRect().height || 20;
    row.remove();
    return height;
  }

  // ---- what is shown -------------------------------------------------------------------------------------------
  show({ store = this.store, rows = this.rows }) {
    if (store !== this.store) this.#forget();
    this.store = store;
    this.rows = rows;
    this.heights.clear();
    this.render();
  }

  // Rows were added at the end, or lines arrived.
  changed() {
    this.render();
  }

  highlight(query) {
    this.query = query;
    this.#forget();
    this.render();
  }

  wrap(on) {
    this.viewport.classList.toggle("log-wrapped", on);
    const row = this.rows.number(this.#firstRow());
    this.heights.clear();
    this.#forget();
    if (this.following) this.toEnd();
    else this.scrollTo(row, "start");
  }

  #forget() {
    for (const element of this.made.values()) element.remove();
    this.made.clear();
  }

  // ---- where ---------------------------------------------------------------------------------------------------
  get #height() {
    return this.heights.top(this.rows.count);
  }

  get #room() {
    return this.viewport.clientHeight;
  }

  // How many list pixels one pixel of the scroll bar stands for.
  get #scale() {
    const height = this.#height;
    return height <= TALLEST ? 1 : (height - this.#room) / (TALLEST - this.#room);
  }

  get #offset() {
    return this.viewport.scrollTop * this.#scale;
  }

  #firstRow() {
    return this.heights.at(this.#offset, this.rows.count);
  }

  get atEnd() {
    return this.#offset + this.#room >= this.#height - this.heights.base;
  }

  toEnd() {
    this.following = true;
    this.render();
  }

  scrollTo(number, where = "center") {
    const row = this.rows.row(number);
    if (row < 0) return;
    this.following = false;
    this.#size();
    const top = this.heights.top(row) - (where === "center" ? this.#room / 2 - this.heights.base : 0);
    this.viewport.scrollTop = Math.max(0, top) / this.#scale;
    this.render();
    this.onScrolled?.();
  }

  pointAt(number) {
    this.made.get(this.current)?.classList.remove("log-asked");
    this.current = number;
    this.made.get(number)?.classList.add("log-asked");
    this.reveal = true;
    this.scrollTo(number);
  }

  #scrolled() {
    if (this.placing === this.viewport.scrollTop) return; // our own doing
    this.following = this.atEnd;
    this.render();
    this.onScrolled?.();
  }

  #resized() {
    if (this.viewport.classList.contains("log-wrapped")) this.heights.clear();
    this.heights.base = this.#measureBase();
    this.render();
  }

  // ---- making rows ---------------------------------------------------------------------------------------------
  render() {
    this.frame ||= requestAnimationFrame(() => {
      this.frame = 0;
      this.#draw();
    });
  }

  #size() {
    this.spacer.style.height = `${Math.min(this.#height, TALLEST)}px`;
  }

  #draw() {
    const { count } = this.rows;
    this.#size();
    if (this.following) this.#place(this.viewport.scrollHeight);
    const offset = this.#offset;
    const first = Math.max(0, this.heights.at(offset, count) - AROUND);
    const last = Math.min(count - 1, this.heights.at(offset + this.#room, count) + AROUND);
    const wanted = [];
    for (let row = first; row <= last; row++) wanted.push(this.rows.number(row));
    this.#make(wanted);
    this.lines.style.transform = `translateY(${this.heights.top(first) - offset + this.viewport.scrollTop}px)`;
    if (this.viewport.classList.contains("log-wrapped")) this.#measure(first, wanted, offset);
    const missing = wanted.filter((number) => !this.store.get(number));
    if (missing.length) this.#fetch(missing);
    if (this.reveal) this.#reveal();
  }

  // A match beyond the right edge, or left of it, is scrolled to the middle; a line without one stays as it is.
  #reveal() {
    const element = this.made.get(this.current);
    if (!element?.line) return; // its text is on the way
    this.reveal = false;
    const mark = element.querySelector("mark")?.getBoundingClientRect();
    const room = this.viewport.getBoundingClientRect();
    if (!mark || (mark.left >= room.left && mark.right <= room.left + this.viewport.clientWidth)) return;
    this.viewport.scrollLeft += (mark.left + mark.right) / 2 - (room.left + this.viewport.clientWidth / 2);
  }

  #make(wanted) {
    const keep = new Set(wanted);
    for (const [number, element] of this.made) {
      if (keep.has(number)) continue;
      element.remove();
      this.made.delete(number);
    }
    let before = null;
    for (const number of wanted) {
      const line = this.store.get(number);
      let element = this.made.get(number);
      if (!element || element.line !== line) {
        const made = rowElement(this.store.launch, line ?? { number }, this.query);
        made.line = line;
        // Columns that no line fills take no room.
        if (line?.time) this.viewport.classList.add("log-has-time");
        if (line?.process) this.viewport.classList.add("log-has-process");
        made.classList.toggle("log-asked", number === this.current);
        if (element) element.replaceWith(made);
        else if (before) before.after(made);
        else this.lines.prepend(made);
        this.made.set(number, (element = made));
      }
      before = element;
    }
  }

  // Rows that turn out taller than was thought must not move what is being read.
  #measure(first, wanted, offset) {
    let moved = 0;
    let changed = false;
    wanted.forEach((number, index) => {
      const element = this.made.get(number);
      if (!element.line) return;
      const above = this.heights.top(first + index) < offset;
      const difference = this.heights.set(first + index, element.getBoundingClientRect().height);
      changed ||= difference !== 0;
      if (above) moved += difference;
    });
    if (!changed) return;
    this.#size();
    if (this.following) this.#place(this.viewport.scrollHeight);
    else if (moved) this.#place(this.viewport.scrollTop + moved / this.#scale);
    this.lines.style.transform = `translateY(${this.heights.top(first) - this.#offset + this.viewport.scrollTop}px)`;
    this.render();
  }

  #place(top) {
    this.viewport.scrollTop = top;
    this.placing = this.viewport.scrollTop;
  }

  async #fetch(missing) {
    const store = this.store;
    try {
      if (await store.need(missing)) this.render();
    } catch {
      // The console is away; what is in sight is asked for again when the connection is back, or on the next move.
    }
  }
}
