"""A value as an error carries it: never more than a line, and writable as JSON whatever it was."""

from __future__ import annotations

import math
from typing import Any, Final

MAX_SHOWN: Final = 80
MAX_EXACT: Final = 1 << 53  # what every JSON reader takes as an exact integer


def shown(value: Any) -> Any:
    """The value itself if it is small and plain, otherwise a short text of it without half characters."""
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, int):
        if abs(value) < MAX_EXACT:
            return value
        # Python refuses to write out integers of thousands of digits.
        return str(value) if value.bit_length() < 256 else f"a {value.bit_length()}-bit integer"
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    return clipped(plain(value) if isinstance(value, str) else ascii(value))


def plain(text: str) -> str:
    """The text with half surrogate pairs written as escapes."""
    return text.encode("utf-8", "backslashreplace").decode()


def clipped(text: str) -> str:
    return text if len(text) <= MAX_SHOWN else text[: MAX_SHOWN - 3] + "..."
