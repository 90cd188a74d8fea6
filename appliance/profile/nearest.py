"""Which of a few allowed values somebody most likely meant."""

from __future__ import annotations

import difflib
from collections.abc import Sequence


def nearest_choice(value: str, choices: Sequence[str]) -> str | None:
    """None where none is near, or several are as near: those that begin with `value`."""
    known = {choice.lower(): choice for choice in choices}
    low = value.strip().lower()
    begun = [choice for choice in known if low and choice.startswith(low)]
    if begun:
        return known[begun[0]] if len(begun) == 1 else known.get(low)
    near = difflib.get_close_matches(low, known, n=1) or [choice for choice in known if low.startswith(choice)]
    return known[near[0]] if near else None
