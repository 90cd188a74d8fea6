// Where each row of a long list lies, without one element for each: all rows have one height, except those that were
// measured and found taller (wrapped lines). Pure arithmetic, no DOM.

export class RowHeights {
  constructor(base) {
    this.base = base;
    this.clear();
  }

  clear() {
    this.extra = new Map(); // row -> pixels beyond the base height
    this.sorted = null;
  }

  // Returns by how much the row's height has changed.
  set(row, height) {
    const before = this.extra.get(row) ?? 0;
    const extra = Math.max(0, height - this.base);
    if (Math.abs(extra - before) < 0.5) return 0;
    if (extra) this.extra.set(row, extra);
    else this.extra.delete(row);
    this.sorted = null;
    return extra - before;
  }

  #sums() {
    if (this.sorted) return this.sorted;
    const rows = [...this.extra.keys()].sort((a, b) => a - b);
    const sums = [0];
    for (const row of rows) sums.push(sums.at(-1) + this.extra.get(row));
    return (this.sorted = { rows, sums });
  }

  // The distance from the top of row 0 to the top of `row`.
  top(row) {
    const { rows, sums } = this.#sums();
    let low = 0;
    let high = rows.length;
    while (low < high) {
      const middle = (low + high) >> 1;
      if (rows[middle] < row) low = middle + 1;
      else high = middle;
    }
    return row * this.base + sums[low];
  }

  // The row, of `count`, that lies at `offset`.
  at(offset, count) {
    let low = 0;
    let high = Math.max(0, count - 1);
    while (low < high) {
      const middle = (low + high + 1) >> 1;
      if (this.top(middle) <= offset) low = middle;
      else high = middle - 1;
    }
    return low;
  }
}
