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
        """The position of the next header."""
        return self._next

    def next(self) -> Member:
        """The next member, without its content. Raises BundleError if there is none."""
        at = self._next
        block = self.source.read(at, BLOCK)
        header = tar_header.unpack(block) if len(block) == BLOCK else None
        if header is None or self.mtime not in (None, header.mtime):
            if at == 0:
                raise BundleError(
                    "not-a-bundle",
                    f"{self.name} is not an Ingot bundle; choose another file",
                )
            if len(block) < BLOCK:
                raise BundleError("incomplete", f"{self._last()} is incomplete: it ends too early; copy it again")
            raise BundleError(
                "damaged",
                f"{self.source.at(at, at + BLOCK)} has no valid file entry at byte {at:,}: it is damaged or "
                "was not made by Ingot; copy it again, and if that does not help, do not use it",
            )
        self.mtime = header.mtime
        member = Member(header.name, header.size, at + BLOCK)
        self._next = at + tar_header.stored(header.size)
        return member

    def small(self, name: str, limit: int) -> bytes:
        """The content of the next member, which has to be `name` and to have at most `limit` bytes."""
        member = self.next()
        if member.name != name:
            raise BundleError(
                "not-a-bundle",
                f"{self.name} is not an Ingot bundle: it contains {member.name} instead of {name}; choose another file",
            )
        if member.size > limit:
            raise BundleError(
                "too-large",
                f"{name} in {self.name} has {member.size:,} bytes; the limit is {limit:,}; do not use this bundle",
            )
        content = self.source.read(member.start, member.size)
        if len(content) < member.size:
            raise BundleError("incomplete", f"{self._last()} is incomplete: it ends too early; copy it again")
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
                "damaged",
                f"{self.source.at(member.end, member.end + 1)} has unexpected bytes after {member.name}; copy it again",
            )

    def finish(self) -> None:
        """Raises BundleError unless the bundle ends here."""
        if self.source.read(self._next, len(END) + 1) != END:
            raise BundleError("damaged", f"{self._last()} has an invalid end; copy it again")

    def _last(self) -> str:
        return self.source.parts[-1].path.name
