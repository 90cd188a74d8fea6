"""Numbers of bytes as people write them: "2 GiB", "512MiB", "1.5 GB", 1073741824."""

from __future__ import annotations

import re
from decimal import Decimal
from typing import Final

_UNITS: Final = {
    "": 1, "b": 1,
    "kb": 10**3, "mb": 10**6, "gb": 10**9, "tb": 10**12,
    "kib": 2**10, "mib": 2**20, "gib": 2**30, "tib": 2**40,
}  # fmt: skip
_SIZE: Final = re.compile(r"^(\d{1,18}(?:\.\d{1,9})?)\s*([A-Za-z]{0,3})$", re.ASCII)


def parse_size(text: str) -> int:
    """Bytes; raises ValueError if the text is not a size or not a whole number of bytes."""
    match = _SIZE.match(text.strip())
    if match is None or match[2].lower() not in _UNITS:
        raise ValueError("not a size")
    size = Decimal(match[1]) * _UNITS[match[2].lower()]
    if size != int(size):
        raise ValueError("not a whole number of bytes")
    return int(size)


def format_size(size: int) -> int | str:
    """The shortest exact spelling: "2 GiB", "3 MiB", or the number itself."""
    for unit in ("TiB", "GiB", "MiB"):
        count, rest = divmod(size, _UNITS[unit.lower()])
        if count and not rest:
            return f"{count} {unit}"
    return size


def size_text(size: float) -> str:
    """For people, rounded: "1.3 GiB"."""
    for unit in ("TiB", "GiB", "MiB", "KiB"):
        if abs(size) >= _UNITS[unit.lower()]:
            return f"{size / _UNITS[unit.lower()]:.1f} {unit}"
    return f"{size:.0f} bytes"
