"""Bookkeeping for copies of states: each holds what the recurrent layers carry after some prefix. No torch.

A copy is found by the hash of the prefix's last block. It is evicted, least recently used first, when its row is needed
for another and no sequence is about to begin from it. One that a sequence has gone past, to a copy further on, goes
first, unless it lasts: where prompts fork off, others will begin.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Iterable
from typing import Final

FRESH: Final = -1
"""In place of a row: the state of no tokens."""


class Snapshots:
    """Rows `first` to `first + count - 1` of the states."""

    def __init__(self, first: int, count: int) -> None:
        self.count = count
        self._rows = range(first, first + count)
        self._free = list(reversed(self._rows))
        self._by_name: OrderedDict[bytes, int] = OrderedDict()  # least recently used first
        self._begun: set[bytes] = set()  # from which a sequence has begun
        self._lasting: set[bytes] = set()
        self._pinned: Counter[int] = Counter()
        self._forgotten: set[int] = set()  # pinned, and free as soon as they are not

    def find(self, name: bytes) -> int | None:
        """The row with the state behind the block of that hash. Does not keep it; see `pin`."""
        return self._by_name.get(name)

    def pin(self, name: bytes) -> int:
        """Keep the row of `name`, which `find` found, until a sequence has begun from it. A copy from which two begin
        lasts."""
        row = self._by_name[name]
        self._by_name.move_to_end(name)
        self._pinned[row] += 1
        if name in self._begun:
            self._lasting.add(name)
        self._begun.add(name)
        return row

    def unpin(self, row: int) -> None:
        assert self._pinned[row] > 0, f"row {row} is not pinned"
        self._pinned[row] -= 1
        if row in self._forgotten and not self._pinned[row]:
            self._forgotten.remove(row)
            self._free.append(row)

    def take(self) -> int | None:
        """A row to copy into, for which the least recently used one may be evicted; None if all are in use."""
        if not self._free:
            oldest = next((name for name, row in self._by_name.items() if not self._pinned[row]), None)
            if oldest is None:
                return None
            self.forget([oldest])
        return self._free.pop()

    def publish(self, row: int, name: bytes, *, lasts: bool) -> None:
        """Make the copy in `row`, from `take`, known. The first copy of a prefix stays."""
        if name in self._by_name:
            self._by_name.move_to_end(name)
            self._free.append(row)
        else:
            self._by_name[name] = row
        if lasts:
            self._lasting.add(name)

    def pass_by(self, name: bytes) -> None:
        """A sequence that had a copy there has one further on."""
        if name in self._by_name and name not in self._lasting:
            self._by_name.move_to_end(name, last=False)

    def give_back(self, row: int) -> None:
        """Return a row that was taken and not published."""
        self._free.append(row)

    def forget(self, names: Iterable[bytes]) -> None:
        """Let nobody find the copies of `names`. The row of one that is pinned is free once it no longer is."""
        for name in names:
            row = self._by_name.pop(name, None)
            if row is None:
                continue
            self._begun.discard(name)
            self._lasting.discard(name)
            if self._pinned[row]:
                self._forgotten.add(row)
            else:
                self._free.append(row)

    def check_books(self, taken: Iterable[int], pinned: Iterable[int]) -> None:
        """Assert that each row is free, known, forgotten, or `taken` by a sequence, and that these are the `pinned`
        ones."""
        rows = sorted([*self._free, *self._by_name.values(), *self._forgotten, *taken])
        assert rows == list(self._rows), "the rows of copies do not match the sequences"
        assert +self._pinned == Counter(pinned), "the pins do not match the sequences"
        assert self._lasting | self._begun <= set(self._by_name), "a copy that was evicted is remembered"
        assert set(pinned).isdisjoint(self._free), "a sequence is to begin from a row that was given away"
