"""A whole log to be searched for words at once, which is faster than line by line."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from itertools import accumulate

from appliance.protocol import EvidenceLine


class Searchable:
    """`lines` joined, in lower case; positions in `lines` of what is found in them."""

    def __init__(self, lines: Sequence[EvidenceLine]) -> None:
        self.lines = lines
        texts = [line.text.encode(errors="replace") for line in lines]
        self._text = b"\n".join(texts).lower()
        self._starts = [0, *accumulate(len(text) + 1 for text in texts)]

    def positions(self, word: bytes) -> Iterator[int]:
        """Of each line that holds the word, once, in order."""
        at = self._text.find(word)
        while at >= 0:
            position = bisect_right(self._starts, at) - 1
            yield position
            at = self._text.find(word, self._starts[position + 1])

    def holds(self, *words: bytes) -> bool:
        return any(word in self._text for word in words)

    def last(self, word: bytes) -> int | None:
        """The position of the last line that holds the word."""
        at = self._text.rfind(word)
        return None if at < 0 else bisect_right(self._starts, at) - 1
