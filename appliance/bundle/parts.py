"""A bundle as a single byte range, whether it is one file or parts `FILE.001`, `FILE.002`, and so on."""

from __future__ import annotations

import errno
import os
import re
import stat
from pathlib import Path
from typing import Final, NamedTuple

from appliance.bundle.errors import BundleError

MAX_PARTS: Final = 999
_PART: Final = re.compile(r"(.+)\.(\d{3})", re.DOTALL)


class Part(NamedTuple):
    path: Path
    fd: int
    start: int
    size: int

    @property
    def end(self) -> int:
        return self.start + self.size


def part_path(whole: Path, number: int) -> Path:
    """Of the part `number`, counted from 1."""
    return whole.with_name(f"{whole.name}.{number:03d}")


def locate(path: Path) -> list[Path]:
    """The files of the bundle that `path` names: itself, or its parts when it is their common name or the first's.

    Raises:
        BundleError: there is none, `path` is a later part, or one in between is missing.
    """
    found = _PART.fullmatch(path.name)
    if found and int(found[2]) > 1 and part_path(path.with_name(found[1]), 1).exists():
        raise BundleError("not-first", f"{path.name} is a later part of {found[1]}; use the first, {found[1]}.001")
    if found and int(found[2]) == 1:
        whole = path.with_name(found[1])
    elif path.exists():
        return [path]
    else:
        whole = path
    numbers = numbers_of(whole)
    if not numbers:
        raise BundleError("no-file", f"{path} does not exist; check the path")
    for number in range(1, numbers[-1] + 1):
        if number not in numbers:
            raise BundleError("part-missing", f"part {part_path(whole, number).name} is missing; copy it to the others")
    return [part_path(whole, number) for number in numbers]


def numbers_of(whole: Path) -> list[int]:
    """Which parts of `whole` are there, in order. Raises BundleError if its folder cannot be listed."""
    return sorted(int(other[2]) for entry in _listed(whole.parent) if (other := _of(whole, entry)))


def _listed(folder: Path) -> list[str]:
    try:
        return os.listdir(folder)
    except OSError as error:
        raise BundleError("not-readable", f"{folder} cannot be listed: {error.strerror}; check the path") from error


def _of(whole: Path, name: str) -> re.Match[str] | None:
    found = _PART.fullmatch(name)
    return found if found and found[1] == whole.name and int(found[2]) > 0 else None


class Joined:
    """The bytes of several files, one after the other."""

    def __init__(self, paths: list[Path]) -> None:
        self.parts: list[Part] = []
        try:
            for path in paths:
                # Not to wait for the writer of a pipe that somebody named like a bundle.
                fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
                self.parts.append(Part(path, fd, self.size, 0))
                status = os.fstat(fd)
                if not stat.S_ISREG(status.st_mode):
                    raise OSError(errno.EINVAL, "not a regular file", str(path))
                self.parts[-1] = Part(path, fd, self.parts[-1].start, status.st_size)
        except OSError as error:
            self.close()
            raise BundleError(
                "not-readable", f"{error.filename} cannot be read: {error.strerror}; check the path"
            ) from error

    @property
    def size(self) -> int:
        return self.parts[-1].end if self.parts else 0

    @property
    def name(self) -> str:
        return self.parts[0].path.name

    def close(self) -> None:
        for part in self.parts:
            os.close(part.fd)
        self.parts = []

    def read_into(self, buffer: memoryview, at: int) -> int:
        """Fill as much of `buffer` as one read gives from the byte `at` on; 0 at the end."""
        for part in self.parts:
            if part.start <= at < part.end:
                try:
                    got = os.preadv(part.fd, [buffer[: part.end - at]], at - part.start)
                except OSError as error:
                    raise OSError(error.errno, f"{part.path.name} cannot be read: {error.strerror}") from error
                if got == 0:
                    raise BundleError(
                        "changed", f"{part.path.name} became shorter while it was being read; copy it again"
                    )
                return got
        return 0

    def read(self, at: int, size: int) -> bytes:
        """`size` bytes from the byte `at` on, or fewer at the end."""
        content = bytearray(size)
        view, filled = memoryview(content), 0
        while filled < size and (got := self.read_into(view[filled:], at + filled)):
            filled += got
        return bytes(view[:filled])

    def at(self, start: int, end: int) -> str:
        """The parts that hold these bytes, by name, for people."""
        names = [part.path.name for part in self.parts if part.start < end and start < part.end]
        return " to ".join(dict.fromkeys((names[0], names[-1]))) if names else self.parts[-1].path.name
