"""How long an answer may reason, as a request tells the core. Part of the protocol; imports nothing of ours."""

from __future__ import annotations

import msgspec


class ThinkingSection(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Reasoning as it stands in an answer's text: behind `begin`, up to the first of `ends`. `forced` are the tokens of
    what ends it; where reasoning comes again after it was ended by them, `forced_again` do."""

    begin: str
    ends: tuple[str, ...]
    forced: tuple[int, ...]
    forced_again: tuple[int, ...] = ()


class ThinkingBudget(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """An answer may reason for so many `tokens`; then its reasoning is ended. `opened`: the prompt has begun the first
    of `sections`. Reasoning stands at the beginning of an answer; where it `recurs`, anywhere before one of `stops`."""

    tokens: int
    sections: tuple[ThinkingSection, ...]
    opened: bool = False
    recurs: bool = False
    stops: tuple[str, ...] = ()
