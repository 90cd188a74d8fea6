"""A container's output, as Docker streams it: frames of stamped pieces, and where to resume such a stream."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from datetime import datetime
from typing import Final, NamedTuple

from console.engine_control.docker_api import DockerUnreachable

FRAMED: Final = "application/vnd.docker.multiplexed-stream"
"""The media type of a log with one frame a piece; a container with a terminal has plain lines."""

HEADER: Final = struct.Struct(">BxxxL")
LARGEST_PIECE: Final = 1 << 20
"""Bytes. Docker cuts at 16 KiB: a frame that says more is none."""

LONGEST_LINE: Final = 1 << 16
"""Bytes of a line that are kept; one that never ends must not fill the memory."""


class StampedLine(NamedTuple):
    """`stamp` is Docker's time of the line's last piece, in UTC with nine digits of a second: it sorts as text."""

    stamp: str
    text: str

    @property
    def at(self) -> float:
        return moment(self.stamp) or 0.0


class LineReader:
    """Puts the lines of one stream together from its bytes, however they are cut."""

    def __init__(self, media_type: str) -> None:
        self._framed = media_type.startswith(FRAMED)
        self._rest = bytearray()
        self._pieces: dict[int, bytearray] = {}

    def feed(self, block: bytes) -> Iterator[StampedLine]:
        self._rest += block
        for source, piece in self._frames() if self._framed else self._plain():
            stamp, _, text = piece.partition(b" ")
            begun = self._pieces.setdefault(source, bytearray())
            begun += text[: max(LONGEST_LINE - len(begun), 0)]
            if piece.endswith(b"\n"):
                del self._pieces[source]
                yield StampedLine(stamp.decode("ascii", "replace"), begun.decode(errors="replace").rstrip("\r\n"))

    def _frames(self) -> Iterator[tuple[int, bytes]]:
        while len(self._rest) >= HEADER.size:
            source, length = HEADER.unpack_from(self._rest)
            if length > LARGEST_PIECE:
                raise DockerUnreachable("the log stream is not in Docker's format")
            end = HEADER.size + length
            if len(self._rest) < end:
                return
            piece = bytes(self._rest[HEADER.size : end])
            del self._rest[:end]
            yield source, piece

    def _plain(self) -> Iterator[tuple[int, bytes]]:
        *lines, rest = self._rest.split(b"\n")
        self._rest = rest
        for line in lines:
            yield 0, bytes(line) + b"\n"


class Place:
    """How much of a container's output has been delivered: the latest stamp, and how many lines since its first one."""

    def __init__(self, container: str = "") -> None:
        self.container = container
        self._stamp = ""
        self._told = 0
        self._again = 0

    def query(self, tail: int) -> str:
        """What to ask of Docker to go on from here."""
        whole = "follow=1&stdout=1&stderr=1&timestamps=1"
        self._again = self._told
        return f"{whole}&since={_seconds(self._stamp)}" if self._stamp else f"{whole}&tail={tail}"

    def is_new(self, line: StampedLine) -> bool:
        """Whether the line is new, which it is only once. Docker repeats everything from the first line of the last
        stamp on, in the same order: also lines with an earlier stamp that were written to the other of stdout and
        stderr at the same moment."""
        if line.stamp > self._stamp:
            self._stamp, self._told, self._again = line.stamp, 0, 0
        if self._again:
            self._again -= 1
            return False
        self._told += 1
        return True


def moment(stamp: str) -> float | None:
    """Docker's times have up to nine digits of a second; Python reads six. None for no time, and for year one, which
    means never."""
    whole, _, rest = stamp.partition(".")
    try:
        read = datetime.fromisoformat(f"{whole.rstrip('Z')}.{rest.rstrip('Z')[:6] or '0'}+00:00")
    except ValueError:
        return None
    return read.timestamp() if read.year > 1 else None


def _seconds(stamp: str) -> str:
    """A stamp as `since` takes it: seconds since 1970 and nine digits."""
    whole, _, rest = stamp.partition(".")
    return f"{int(moment(whole) or 0)}.{rest.rstrip('Z'):0<9}"
