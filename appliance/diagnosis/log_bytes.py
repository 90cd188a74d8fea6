"""The bytes of a log as UTF-8 with one `\\n` after each line, piece by piece: unpacked, decoded, without holes."""

from __future__ import annotations

import bz2
import codecs
import gzip
import lzma
import re
import zlib
from collections.abc import Iterator
from itertools import chain
from pathlib import Path
from typing import IO, Protocol

PIECE_BYTES = 1 << 20
SAMPLE_BYTES = 1 << 16
MAX_UNPACKED_BYTES = 2 << 30
# A log that was truncated while its writer held it open (logrotate's copytruncate) begins with a hole of NULs.
HOLE = re.compile(rb"\0{8,}")
# What terminals, journals and progress bars write. Any other control character belongs to binary data.
TEXT_CONTROLS = bytes([*range(7, 14), 27])
CONTROLS = bytes(sorted({*range(32), 127} - set(TEXT_CONTROLS)))
MOST_CONTROLS = 0.02
MOST_INVALID = 0.10
# Without a byte order mark: the share of NULs among the high bytes of UTF-16.
WIDE_SHARE = 0.4
WIDE_ENDS = 0.8  # of the bytes of line ends, so many are next to a NUL

# Longer marks first: UTF-32's begins with UTF-16's.
MARKS = (
    (codecs.BOM_UTF32_LE, "utf-32-le"),
    (codecs.BOM_UTF32_BE, "utf-32-be"),
    (codecs.BOM_UTF8, "utf-8"),
    (codecs.BOM_UTF16_LE, "utf-16-le"),
    (codecs.BOM_UTF16_BE, "utf-16-be"),
)
UNPACKERS = ((b"\x1f\x8b", gzip.open), (b"BZh", bz2.open), (b"\xfd7zXZ\0", lzma.open))
# Formats that are recognised and not read, with the command that unpacks them.
PACKED = (
    (b"\x28\xb5\x2f\xfd", "zstd -d"),
    (b"PK\x03\x04", "unzip"),
    (b"7z\xbc\xaf\x27\x1c", "7z x"),
    (b"\x04\x22\x4d\x18", "lz4 -d"),
)


class Unpacked(Protocol):
    def read1(self, size: int = -1, /) -> bytes: ...


class NotTextError(ValueError):
    """The file holds no text; the message says what it holds instead, and the remedy where there is one."""


def text_pieces(path: Path) -> Iterator[bytes]:
    """Raises OSError, and NotTextError where the file holds no text. Memory is bounded by a few PIECE_BYTES."""
    with path.open("rb") as file:
        head = file.peek(8)  # a pipe cannot be rewound
        for magic, command in PACKED:
            if head.startswith(magic):
                raise NotTextError(f"it is compressed; unpack it first with `{command}`")
        unpacker = next((unpack for magic, unpack in UNPACKERS if head.startswith(magic)), None)
        if unpacker is None:
            yield from _text(_read(file))
            return
        with unpacker(file, "rb") as unpacked:
            yield from _text(_read_unpacked(unpacked))


def _read(file: IO[bytes]) -> Iterator[bytes]:
    while piece := file.read(PIECE_BYTES):
        yield piece


def _read_unpacked(file: Unpacked) -> Iterator[bytes]:
    size = 0
    held = bytearray()
    while True:
        try:
            part = file.read1(PIECE_BYTES)  # which, unlike read, gives what stands before a damaged place
        except (EOFError, OSError, zlib.error, lzma.LZMAError) as error:
            if size == 0:
                raise NotTextError("it is compressed, and damaged") from error
            part = b""
        size += len(part)
        if size > MAX_UNPACKED_BYTES:
            raise NotTextError(f"it unpacks to more than {MAX_UNPACKED_BYTES >> 30} GiB; unpack it and cut it first")
        held += part
        if held and (not part or len(held) >= PIECE_BYTES):
            yield bytes(held)
            held.clear()
        if not part:
            return


def _text(pieces: Iterator[bytes]) -> Iterator[bytes]:
    sample = b""
    started: list[bytes] = []
    for piece in pieces:
        filled = HOLE.sub(b"", piece)
        if filled:
            started.append(piece if not sample and piece.startswith(tuple(mark for mark, _ in MARKS)) else filled)
            sample += filled
        if len(sample) >= SAMPLE_BYTES:
            break
    if not started:
        return
    first = started[0]
    mark, encoding = next(((mark, name) for mark, name in MARKS if first.startswith(mark)), (b"", ""))
    encoding = encoding or _wide(sample[:SAMPLE_BYTES])
    started[0] = first[len(mark) :]
    whole: Iterator[bytes] = chain(started, pieces)
    if encoding not in ("", "utf-8"):
        whole = _decoded(whole, encoding)
        sample = next(whole, b"")
        whole = chain([sample], whole)
    sample = sample[:SAMPLE_BYTES]
    _check(sample)
    old_mac = b"\n" not in sample and b"\r" in sample.rstrip(b"\r")
    nul = b"" if b"\n" in sample or old_mac else b"\n"  # systemd's and find's way to end a line
    for piece in whole:
        text = HOLE.sub(b"", piece).replace(b"\0", nul) if b"\0" in piece else piece
        yield text.replace(b"\r", b"\n") if old_mac else text


def _decoded(pieces: Iterator[bytes], encoding: str) -> Iterator[bytes]:
    decoder = codecs.getincrementaldecoder(encoding)(errors="replace")
    for piece in pieces:
        yield decoder.decode(piece).encode(errors="replace")
    yield decoder.decode(b"", final=True).encode(errors="replace")


def _wide(sample: bytes) -> str:
    """UTF-16 without a mark, which Windows tools write; empty for anything else."""
    half = len(sample) // 2 or 1
    even, odd = sample[0::2].count(0) / half, sample[1::2].count(0) / half
    encoding = "utf-16-le" if odd > even else "utf-16-be"
    if max(even, odd) >= WIDE_SHARE:
        return encoding if min(even, odd) <= WIDE_SHARE / 4 else ""
    # Chinese or Russian has few NULs; but every line ends in one.
    pair = re.compile(rb"\n\0" if encoding == "utf-16-le" else rb"\0\n")
    ends = sum(found.start() % 2 == 0 for found in pair.finditer(sample))
    return encoding if ends and ends >= sample.count(b"\n") * WIDE_ENDS else ""


def _check(sample: bytes) -> None:
    text = HOLE.sub(b"", sample)
    controls = len(text) - len(text.translate(None, CONTROLS))
    # A character may be cut at the end of the sample.
    invalid = text.decode(errors="replace").count("\ufffd") - text.count("\ufffd".encode())
    if controls > len(text) * MOST_CONTROLS or invalid - 1 > len(text) * MOST_INVALID:
        raise NotTextError("it holds binary data")
