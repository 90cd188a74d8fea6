"""Bounded reasoning: counts the tokens that an answer reasons for, and ends its reasoning when they are used up.

Where reasoning begins and ends is read from the text, as the front door reads it: a model may spell a marker in tokens
of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

import numpy as np
from numpy.typing import NDArray

from appliance.thinking_budget import ThinkingBudget, ThinkingSection

_SPACE: Final = b" \t\n\r"
# An unfinished character has up to three bytes.
_LEAST_KEPT: Final = 3


class Thinking:
    """Where one answer stands in its reasoning. As a Mask, it allows the token that is `forced` alone."""

    def __init__(self, budget: ThinkingBudget, decode_bytes: Callable[[list[int]], bytes], num_words: int) -> None:
        self.num_words = num_words
        self._budget = budget
        self._decode_bytes = decode_bytes
        self._begins = [(section.begin.encode(), section) for section in budget.sections]
        self._stops = [stop.encode() for stop in budget.stops]
        self._section: ThinkingSection | None = budget.sections[0] if budget.opened else None
        self._first = True
        """Whether all that has come may be the beginning of a marker, or white space before one."""
        self._over = False
        """Whether no reasoning can come any more, or none that is bounded."""
        self._count = 0
        self._rest: list[int] = []
        """Of the tokens that are being forced, those that are still to come."""
        self._ended = False
        """Whether the reasoning was ended once."""
        self._text = b""
        """The end of what has come, in which a marker may have begun."""

    @property
    def forced(self) -> int | None:
        """The token that must come next. A character that has begun is completed first, unless the model begins
        others instead."""
        if self._rest:
            return self._rest[0]
        beyond = self._count - self._budget.tokens
        if self._section is None or beyond < 0 or (beyond < _LEAST_KEPT and _is_unfinished(self._text)):
            return None
        return self._end(self._section)[0]

    def may_force(self, num_unread: int) -> bool:
        """Whether the next token may be forced, when so many have been sampled since those that were accepted."""
        if self._over:
            return bool(self._rest)
        return self._count + num_unread >= self._budget.tokens

    def fill(self, words: NDArray[np.int32]) -> None:
        token = self.forced
        assert token is not None
        words[:] = 0
        words.view(np.uint32)[token // 32] = 1 << token % 32

    def accept(self, token_id: int) -> None:
        """`token_id` is the next token of the answer."""
        if self._over and not self._rest:
            return
        forced = self.forced
        if forced is not None and not self._rest and self._section is not None:
            self._rest = list(self._end(self._section))
            self._ended = True
        self._count += self._section is not None
        self._text += self._decode_bytes([token_id])
        while not self._over and self._read():
            pass
        if forced is not None:
            del self._rest[0]
            if not self._rest and self._section is not None:  # whatever their text is
                self._leave(0)

    def _end(self, section: ThinkingSection) -> Sequence[int]:
        return section.forced_again if self._ended and section.forced_again else section.forced

    def _read(self) -> bool:
        """Go on in the text; whether there is more to read."""
        if self._first:
            return self._begin_first()
        if self._section is None:
            return self._begin_again()
        _, end = self._search([end.encode() for end in self._section.ends])
        if end:
            self._leave(end)
        return bool(end)

    def _begin_first(self) -> bool:
        """Where the prompt has begun the reasoning, the model may do so again."""
        text = self._text.lstrip(_SPACE)
        for begin, section in self._begins:
            if text.startswith(begin):
                self._enter(section, text[len(begin) :])
                return True
        if any(begin.startswith(text) for begin, _ in self._begins):
            self._text = text
            return False
        self._first = False
        self._over = self._section is None and not self._budget.recurs
        return True

    def _begin_again(self) -> bool:
        which, end = self._search([begin for begin, _ in self._begins] + self._stops)
        if not end:
            return False
        if which < len(self._begins):
            self._enter(self._begins[which][1], self._text[end:])
        else:
            self._over = True
        return True

    def _enter(self, section: ThinkingSection, rest: bytes) -> None:
        self._section, self._first, self._text = section, False, rest

    def _leave(self, end: int) -> None:
        """The reasoning ends before `end` of the text."""
        self._section, self._text = None, self._text[end:]
        self._over = not self._budget.recurs

    def _search(self, markers: Sequence[bytes]) -> tuple[int, int]:
        """Which marker comes first in the text, and where it ends. Where none does: 0, and only the end of the text
        is kept, in which one may have begun."""
        found = [(at, number) for number, marker in enumerate(markers) if (at := self._text.find(marker)) >= 0]
        if found:
            at, number = min(found)
            return number, at + len(markers[number])
        self._text = self._text[-max(_LEAST_KEPT, *(len(marker) - 1 for marker in markers)) :]
        return 0, 0


def _is_unfinished(text: bytes) -> bool:
    """Whether it ends within a character of UTF-8."""
    for back, byte in enumerate(reversed(text[-_LEAST_KEPT:]), 1):
        if byte & 0xC0 != 0x80:
            length = 1 if byte < 0xC0 else 2 if byte < 0xE0 else 3 if byte < 0xF0 else 4
            return length > back
    return False
