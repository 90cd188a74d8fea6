// Which lines of a log hold what is searched for, and which pass the filter. Looking is the server's part, since the
// browser has only a few of the lines; lines that are written meanwhile are looked through as they come.

import { fetchJson } from "./log-store.js";

const PAUSE_MS = 300; // between two looks at a log that grows
const BEHIND = 20_000; // lines still to be looked through, beyond which there is no pause to speak of
const BREATH_MS = 20;

export class LogSearch {
  constructor(onFound) {
    this.onFound = onFound;
    this.turn = 0; // what was asked before the last `begin` is out of date
    this.begin({ q: "", level: "", process: "" });
  }

  begin(filter) {
    this.filter = filter;
    this.turn += 1;
    this.looking = null;
    this.scanned = 0; // up to which line has been looked
    this.matches = []; // numbers of the lines that hold the query
    this.count = 0; // how many there are, which may be more than have been told
    this.at = -1; // the match that is pointed at
    this.shown = filter.level || filter.process ? [] : null; // numbers of the lines that pass; null: all do
    this.processes = [];
  }

  get asks() {
    return !!this.filter.q || this.shown !== null;
  }

  // Look through the lines that were added since the last look, unless that is going on.
  go(store) {
    if (!this.asks || this.looking) return;
    const looking = this.#look(store).finally(() => {
      if (this.looking === looking) this.looking = null;
    });
    this.looking = looking;
  }

  async #look(store) {
    const { turn } = this;
    while (this.scanned < store.total) {
      const { level, process, q } = this.filter;
      const query = { launch: store.launch, after: this.scanned, level, process };
      const [passed, found] = await Promise.all([
        this.shown && fetchJson(`/log/matches?${new URLSearchParams(query)}`),
        q && fetchJson(`/log/matches?${new URLSearchParams({ ...query, q })}`),
      ]).catch(() => []);
      if (turn !== this.turn) return;
      if (!passed && !found) return; // the console is away; the next line or click asks again
      if (passed) this.shown.push(...passed.numbers);
      if (found) {
        this.matches.push(...found.numbers);
        this.count += found.count;
      }
      this.scanned = (passed || found).scanned;
      this.processes = (passed || found).processes;
      this.onFound();
      const behind = store.total - this.scanned > BEHIND;
      await new Promise((done) => setTimeout(done, behind ? BREATH_MS : PAUSE_MS));
      if (turn !== this.turn) return;
    }
  }

  // Point at the match `by` further on; the last one where `last` is said. Its line number, or 0 where there is none.
  step(by, last = false) {
    const { length } = this.matches;
    if (!length) return 0;
    if (last || (this.at < 0 && by < 0)) this.at = length - 1;
    else this.at = this.at < 0 ? 0 : (this.at + by + length) % length;
    return this.matches[this.at];
  }

  words(total) {
    if (!this.filter.q) return "";
    if (!this.count) return this.scanned < total ? "searching" : "nothing found";
    const count = this.count.toLocaleString("en") + (total - this.scanned > BEHIND ? " so far" : "");
    return this.at < 0 ? `${count} found` : `${(this.at + 1).toLocaleString("en")} of ${count}`;
  }
}
