"""A whole log searched at once, which is faster than line by line."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from itertools import accumulate

from appliance.protocol import EvidenceLine


class Searchable:
    """`lines` joined, in lower case; positions in `lines` of what is found in them."""

    def __init__(self, lines: Sequence[EvidenceLine]) -> None:
        self.lines = lines
        joined = "\n".join([line.text for line in lines])
        if joined.isascii():
            self._text = joined.encode().lower()
            lengths = [len(line.text) + 1 for line in lines]
        else:
            texts = [line.text.encode(errors="replace") for line in lines]
            self._text = b"\n".join(texts).lower()
            lengths = [len(text) + 1 for text in texts]
        self._starts = [0, *accumulate(lengths)]

    def positions(self, word: bytes) -> Iterator[int]:
        """Of each line that holds the word, once, in order."""
        at = self._text.find(word)
        while at >= 0:
            position = bisect_right(self._starts, at) - 1
            yield position
            at = self._text.find(word, self._starts[position + 1])

    def positions_from_end(self, word: bytes) -> Iterator[int]:
        """The same, the last line first."""
        at = self._text.rfind(word)
        while at >= 0:
            position = bisect_right(self._starts, at) - 1
            yield position
            at = self._text.rfind(word, 0, self._starts[position])

    def present(self, words: Sequence[bytes]) -> list[bytes]:
        """Those of the words that stand in it."""
        text = self._text
        return [word for word in words if word in text]

    def last(self, word: bytes) -> int | None:
        """The position of the last line that holds the word."""
        at = self._text.rfind(word)
        return None if at < 0 else bisect_right(self._starts, at) - 1
