"""The header of a member: the one form of it that is written, and the only one that is read.

A reader that accepts what another reader takes for something else can be fooled. So there is no freedom: a plain file,
a plain name, one owner, and no extension that would carry a second name or size.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from appliance.bundle.names import INSTALLER, is_path, split

BLOCK: Final = 512
END: Final = bytes(2 * BLOCK)
_OCTAL_SIZES: Final = 8**11  # from here on a size is written in base 256, which GNU tar and busybox read, too
_MAX_SIZE: Final = 1 << 62


class Header(NamedTuple):
    name: str
    size: int
    mtime: int


def stored(size: int) -> int:
    """What a member of `size` bytes takes in the archive, with its header."""
    return BLOCK + size + -size % BLOCK


def pack(header: Header) -> bytes:
    """The 512 bytes before a member's content. Raises ValueError for what cannot be written."""
    fields = split(header.name)
    if fields is None or not is_path(header.name):
        raise ValueError(f"the name {header.name!r} cannot be written")
    if not 0 <= header.size < _MAX_SIZE or not 0 <= header.mtime < _OCTAL_SIZES:
        raise ValueError(f"{header.name} has a size or time that cannot be written")
    prefix, name = fields
    size = b"%011o\0" % header.size if header.size < _OCTAL_SIZES else b"\x80" + header.size.to_bytes(11, "big")
    mode = 0o755 if header.name == INSTALLER else 0o644
    before = name.encode().ljust(100, b"\0") + b"%07o\0" % mode + b"%07o\0" % 0 * 2 + size + b"%011o\0" % header.mtime
    after = b"0" + bytes(100) + b"ustar\x0000" + bytes(64 + 16) + prefix.encode().ljust(155, b"\0")
    block = (before + b" " * 8 + after).ljust(BLOCK, b"\0")
    return block[:148] + b"%06o\0 " % sum(block) + block[156:]


def unpack(block: bytes) -> Header | None:
    """What a header says; None for what `pack` does not write: another type, a link, an owner, an extension."""
    try:
        prefix, name = (block[at : at + length].rstrip(b"\0").decode("ascii") for at, length in ((345, 155), (0, 100)))
        raw = block[124:136]
        size = int.from_bytes(raw[1:], "big") if raw[0] == 0x80 else int(raw[:11], 8)
        header = Header(f"{prefix}/{name}" if prefix else name, size, int(block[136:147], 8))
        return header if pack(header) == block else None
    except (ValueError, IndexError):
        return None
