"""A fix's patch as a form carries it."""

from __future__ import annotations

import json
import re
from typing import Any

from console.errors import Refusal

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
