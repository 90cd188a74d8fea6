// The lines of one launch's log, as far as the browser has them. Lines come by the live stream or are fetched by number;
// when many are held, those that were got longest ago are let go, and fetched again if they are looked at.

const HELD = 60_000;
const FETCH = 500;

export class LineStore {
  constructor(launch, total) {
    this.launch = launch;
    this.total = total;
    this.lines = new Map(); // number -> line
    this.fetching = null;
  }

  get(number) {
    return this.lines.get(number);
  }

  put(lines) {
    for (const line of lines) {
      this.lines.delete(line.number); // to the end of the order
      this.lines.set(line.number, line);
    }
    if (this.lines.size <= HELD) return;
    for (const number of this.lines.keys()) {
      if (this.lines.size <= HELD - HELD / 10) break;
      this.lines.delete(number);
    }
  }

  // Fetch those of the numbers that are not held; one request at a time. Resolves to whether anything came.
  async need(numbers) {
    const missing = numbers.filter((number) => number <= this.total && !this.lines.has(number)).slice(0, FETCH);
    if (!missing.length || this.fetching) return false;
    const query = new URLSearchParams({ launch: this.launch });
    const span = missing.at(-1) - missing[0] + 1;
    if (span <= 2 * FETCH) {
      query.set("from", missing[0]);
      query.set("count", span);
    } else {
      query.set("numbers", missing.join(","));
    }
    this.fetching = fetchJson(`/log/lines?${query}`);
    try {
      this.put(await this.fetching);
      return true;
    } finally {
      this.fetching = null;
    }
  }
}

export async function fetchJson(url, options) {
  const response = await fetch(url, { headers: { Accept: "application/json" }, ...options });
  if (!response.ok) throw new Error(`${url} answered ${response.status}`);
  return response.json();
}
