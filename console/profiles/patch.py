"""A fix's patch as a form carries it."""

from __future__ import annotations

import json
import re
from typing import Any

from console.refusals import Refusal

NOT_A_FIX = frozenset({"name", "schema"})
"""A profile's name and schema: changing them fixes no launch."""

_KEY = re.compile(r"[a-z0-9][a-zA-Z0-9_-]*(\.[a-zA-Z0-9_-]+)*")


def read_patch(text: str) -> dict[str, Any]:
    """A JSON object of dotted keys; None as a value removes the key."""
    try:
        patch = json.loads(text)
    except (ValueError, RecursionError):
        patch = None
    if not isinstance(patch, dict) or not patch or not all(_KEY.fullmatch(key) for key in patch):
        raise Refusal(
            422,
            "The fix is not a JSON object of settings.",
            "Open the profile's form and make the change there.",
            field="patch",
            value=text[:80],
        )
    return patch


def read_applied_patch(text: str) -> dict[str, Any]:
    """Of a fix that is saved and started at once, with no form to look at it."""
    patch = read_patch(text)
    if named := sorted(NOT_A_FIX.intersection(key.partition(".")[0] for key in patch)):
        raise Refusal(
            422,
            f"A fix does not change a profile's {named[0]}.",
            "Open the profile's form and make the change there.",
            field="patch",
            value=text[:80],
        )
    return patch
