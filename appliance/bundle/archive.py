"""The members of a bundle, one after the other. What tar allows and a bundle never has is refused: links, devices,
folders, other owners, extended headers, bytes between and after."""

from __future__ import annotations

from pathlib import Path
from typing import Final, NamedTuple

from appliance.bundle import parts, tar_header
from appliance.bundle.errors import BundleError
from appliance.bundle.tar_header import BLOCK, END


class Member(NamedTuple):
    name: str
    size: int
    start: int  # of its content, in the whole bundle

    @property
    def end(self) -> int:
        return self.start + self.size


class Archive:
    """A bundle that is read from its start. A context manager."""

    def __init__(self, path: Path) -> None:
        self.source: Final = parts.Joined(parts.locate(path))
        self.name: Final = self.source.name
        self.mtime: int | None = None  # of every member
        self._next = 0

    def __enter__(self) -> Archive:
        return self

    def __exit__(self, *error: object) -> None:
        self.source.close()

    @property
    def position(self) -> int:
        """Where the next header lies."""
        return self._next

    def next(self) -> Member:
        """The next member; its content need not be read. Raises BundleError where none begins."""
        at = self._next
        block = self.source.read(at, BLOCK)
        header = tar_header.unpack(block) if len(block) == BLOCK else None
        if header is None or self.mtime not in (None, header.mtime):
            if at == 0:
                raise BundleError(f"{self.name} does not begin as a bundle does; it is not an Ingot bundle")
            if len(block) < BLOCK:
                raise BundleError(f"{self._last()} ends too early; copy it again")
            raise BundleError(
                f"{self.source.at(at, at + BLOCK)} has no plain file of a bundle at byte {at}: it is damaged or was "
                "made by somebody else; copy it again, and do not use it if that changes nothing"
            )
        self.mtime = header.mtime
        member = Member(header.name, header.size, at + BLOCK)
        self._next = at + tar_header.stored(header.size)
        return member

    def small(self, name: str, limit: int) -> bytes:
        """The content of the next member, which has to be `name` and to have at most `limit` bytes."""
        member = self.next()
        if member.name != name:
            raise BundleError(f"{self.name} holds {member.name} where a bundle has {name}; it is not an Ingot bundle")
        if member.size > limit:
            raise BundleError(
                f"{name} in {self.name} has {member.size} bytes, and at most {limit} are read; do not use it"
            )
        content = self.source.read(member.start, member.size)
        if len(content) < member.size:
            raise BundleError(f"{self._last()} ends too early; copy it again")
        self.check_padding(member)
        return content

    def peek(self) -> str:
        """The name of the next member, which is still to be read."""
        at, name = self._next, self.next().name
        self._next = at
        return name

    def check_padding(self, member: Member) -> None:
        """Nothing is hidden between the end of a member and the next header."""
        if any(self.source.read(member.end, -member.size % BLOCK)):
            raise BundleError(
                f"{self.source.at(member.end, member.end + 1)} has bytes after {member.name}; copy it again"
            )

    def finish(self) -> None:
        """Raises BundleError unless the bundle ends here."""
        if self.source.read(self._next, len(END) + 1) != END:
            raise BundleError(f"{self._last()} does not end as a bundle does; copy it again")

    def _last(self) -> str:
        return self.source.parts[-1].path.name
