"""What a compiled kernel uses, read from its ELF file, because NVIDIA's tools may not be installed."""

from __future__ import annotations

import struct
from typing import NamedTuple

# An attribute of section `.nv.info`: format 4 ("a size and that many bytes"), then one of these, each with the number
# of a symbol and a value. As cuobjdump prints them: EIATTR_REGCOUNT, EIATTR_FRAME_SIZE.
_SIZED = 0x04
_REGISTERS = 0x2F
_FRAME = 0x11


class Usage(NamedTuple):
    """Per thread: registers, and bytes of local memory (spilled values and indexed arrays)."""

    registers: int | None = None
    stack: int | None = None


def usage(cubin: bytes) -> Usage:
    found: dict[int, int] = {}
    info = _section(cubin, b".nv.info")
    place = 0
    while place + 4 <= len(info):
        form, attribute, size = struct.unpack_from("<BBH", info, place)
        place += 4
        if form != _SIZED:
            continue
        if attribute in (_REGISTERS, _FRAME) and size >= 8:
            value = struct.unpack_from("<I", info, place + 4)[0]
            found[attribute] = max(found.get(attribute, 0), value)
        place += size
    return Usage(found.get(_REGISTERS), found.get(_FRAME))


def _section(elf: bytes, wanted: bytes) -> bytes:
    """The content of a section of an ELF64 file; empty if it has no such section."""
    (headers,) = struct.unpack_from("<Q", elf, 0x28)
    size, count, names = struct.unpack_from("<HHH", elf, 0x3A)
    fields = [struct.unpack_from("<IIQQQQ", elf, headers + number * size) for number in range(count)]
    strings = fields[names][4]
    for name, _, _, _, offset, length in fields:
        start = strings + name
        if elf[start : elf.index(b"\0", start)] == wanted:
            return elf[offset : offset + length]
    return b""
