"""Which version of the C library a compiled library asks for, read from its table of symbols' names.

The names of versions (`GLIBC_2.34`) stand in the string table of the dynamic symbols: see elf(5).
"""

from __future__ import annotations

import re
import struct
from pathlib import Path
from typing import Final

_MAGIC: Final = b"\x7fELF\x02\x01"  # 64 bits, little-endian
_DYNAMIC_SYMBOLS: Final = 11
_MOST_SECTIONS, _MOST_NAMES = 512, 32 << 20
_GLIBC: Final = re.compile(rb"GLIBC_(\d+)\.(\d+)")


def needed_glibc(library: Path) -> tuple[int, int] | None:
    """The newest version the file needs; None if unknown."""
    try:
        with library.open("rb") as file:
            header = file.read(64)
            if not header.startswith(_MAGIC):
                return None
            place, size, count = struct.unpack_from("<40xQ10xHH", header)
            file.seek(place)
            table = file.read(size * min(count, _MOST_SECTIONS))
            # Of a section's header: its kind, its offset, its size, and the section that it refers to.
            sections = [struct.unpack_from("<4xI16xQQI", table, i * size) for i in range(len(table) // size)]
            names = next((sections[link] for kind, _, _, link in sections if kind == _DYNAMIC_SYMBOLS), None)
            if names is None:
                return None
            file.seek(names[1])
            found = _GLIBC.findall(file.read(min(names[2], _MOST_NAMES)))
    except (OSError, struct.error, IndexError, ArithmeticError, ValueError):  # damaged, or no such file
        return None
    return max(((int(major), int(minor)) for major, minor in found), default=None)
