"""Finds the catalogue rows that may match a text without trying each of them."""

from __future__ import annotations

import functools
import re
from collections import Counter, defaultdict
from typing import Any, Literal, NamedTuple

from appliance.diagnosis.axes import displaced_by_speaker
from appliance.diagnosis.cause import Cause
from appliance.diagnosis.causes import CATALOGUE
from appliance.diagnosis.stripping import without_advice, without_dumps

WORD = re.compile(r"[a-z]+|[0-9]+")
MAX_TEXT = 6000


class Match(NamedTuple):
    cause: Cause
    groups: dict[str, str]


@functools.cache
def _rows_by_word() -> tuple[dict[str, tuple[int, ...]], tuple[int, ...]]:
    """The positions of the rows under the rarest word of each of their signs, and those of rows without signs."""
    common = Counter(word for cause in CATALOGUE for sign in cause.signs for word in WORD.findall(sign))
    by_word: dict[str, list[int]] = defaultdict(list)
    for position, cause in enumerate(CATALOGUE):
        for sign in cause.signs:
            by_word[min(WORD.findall(sign), key=lambda word: (common[word], -len(word)))].append(position)
    return (
        {word: tuple(positions) for word, positions in by_word.items()},
        tuple(position for position, cause in enumerate(CATALOGUE) if not cause.signs),
    )


Flag = Literal["line", "warning", "deadly"]


def causes_of(text: str, places: str = "", only: Flag | None = None) -> tuple[Match, ...]:
    """The rows that match: of those that are certain the one that fits most closely, and before it the vague ones, the
    closest first. `places` is where it was raised. `only` restricts them to rows with this flag. What the message
    advises counts only where the rest says nothing."""
    said = without_dumps(text[:MAX_TEXT])
    return _causes_of(without_advice(said), places[-MAX_TEXT:], only) or _causes_of(said, places[-MAX_TEXT:], only)


@functools.lru_cache(maxsize=256)  # ranks and restarts say the same again and again
def _causes_of(text: str, places: str, only: Flag | None) -> tuple[Match, ...]:
    lowered = text.lower()
    others = displaced_by_speaker(text)
    by_word, wordless = _rows_by_word()
    positions = set(wordless) if places else set()
    for word in by_word.keys() & set(WORD.findall(lowered)):
        positions.update(by_word[word])
    vague: list[Match] = []
    certain: list[Match] = []
    for position in positions:
        cause = CATALOGUE[position]
        if cause.family in others or (only is not None and not getattr(cause, only)):
            continue
        groups = cause.match(text, lowered, places)
        if groups is not None:
            (vague if cause.vague else certain).append(Match(cause, groups))

    def closeness(match: Match) -> tuple[Any, ...]:
        """Rows that fit as closely are told apart by what they are, so that their order in the files means nothing."""
        cause = match.cause
        return *cause.fit(lowered, match.groups), cause.family, cause.name, cause.signs, cause.pattern, cause.where

    return *sorted(vague, key=closeness, reverse=True), *sorted(certain, key=closeness, reverse=True)[:1]
