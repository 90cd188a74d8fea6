"""Writes a bundle into one file or into parts, under temporary names until it is complete."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import os
import shutil
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from appliance.bundle.copying import write_all
from appliance.bundle.errors import BundleError
from appliance.bundle.parts import part_path


class Output:
    """Bytes that are cut every `part_size` bytes into files in `folder`. A context manager."""

    def __init__(self, folder: Path, name: str, part_size: int | None) -> None:
        self._whole = folder / name
        self._part_size = part_size
        self._fds: list[int] = []
        self._digests: list[hashlib._Hash] = []
        self._hasher = ThreadPoolExecutor(1, "part-hash")
        self.paths: list[Path] = []
        self._at = 0

    def __enter__(self) -> Output:
        return self

    def __exit__(self, *error: object) -> None:
        self._hasher.shutdown()
        for fd in self._fds:
            os.close(fd)
        self._fds = []

    def write(self, piece: bytes | memoryview) -> None:
        """Append."""
        rest = memoryview(piece)
        while rest:
            if self._part_size is None:
                number, room = 0, len(rest)
            else:
                number, room = divmod(self._at, self._part_size)
                room = self._part_size - room
            if number == len(self._fds):
                self._begin()
            here, rest = rest[:room], rest[room:]
            hashed = self._hasher.submit(self._digests[number].update, here) if number else None
            write_all(self._fds[number], here)
            self._at += len(here)
            if hashed is not None:
                hashed.result()

    def replace_start(self, head: bytes) -> None:
        """Write `head` over the bytes at the start, all of which are in the first part."""
        assert self._part_size is None or len(head) <= self._part_size
        os.lseek(self._fds[0], 0, os.SEEK_SET)
        write_all(self._fds[0], memoryview(head))

    def later_parts(self) -> tuple[str, ...]:
        """The SHA-256 of every part but the first."""
        return tuple(digest.hexdigest() for digest in self._digests[1:])

    def sync(self) -> None:
        """Return once all of it is on the disk."""
        for fd in self._fds:
            os.fsync(fd)

    def _begin(self) -> None:
        number = len(self._fds) + 1
        path = self._whole if self._part_size is None else part_path(self._whole, number)
        self._fds.append(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644))
        self._digests.append(hashlib.sha256())
        self.paths.append(path)


@contextlib.contextmanager
def staging(out: Path) -> Iterator[Path]:
    """A hidden folder beside `out` that is gone afterwards, whatever happens. What a machine that went down has left
    there is removed first."""
    folder = out.with_name(f".{out.name}.partial")
    try:
        folder.mkdir(exist_ok=True)
        fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    except OSError as error:
        raise BundleError(
            "not-writable", f"{out} cannot be written: {error.strerror}; choose another folder"
        ) from error
    try:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise BundleError(
                "busy", f"another `ingot bundle create` is writing {out}; wait until it has finished"
            ) from error
        try:
            for old in folder.iterdir():
                shutil.rmtree(old) if old.is_dir() else old.unlink()
            yield folder
        except OSError as error:
            if error.errno not in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
                raise
            hint = "; with --split 4G it fits a FAT32 medium" if error.errno == errno.EFBIG else ""
            raise BundleError(
                "disk-full",
                f"{out} could not be written: {error.strerror}; free some space, or choose another disk{hint}",
            ) from error
        finally:
            shutil.rmtree(folder, ignore_errors=True)
    finally:
        os.close(fd)


def require_room(folder: Path, need: int) -> None:
    """Raises BundleError unless that many bytes are free."""
    free = shutil.disk_usage(folder).free
    if free < need:
        raise BundleError(
            "disk-full",
            f"the bundle needs {need / 2**30:.2f} GiB in {folder}, which has {free / 2**30:.2f} GiB free; "
            "free some space, or choose another disk",
        )


def place(staged: list[Path], folder: Path) -> None:
    """Move complete files into place, the first one last, so that a bundle whose first part exists is complete."""
    placed: list[Path] = []
    try:
        for path in [*staged[1:], staged[0]]:
            target = folder / path.name
            if os.path.lexists(target):  # since it was looked for at the beginning
                raise BundleError("file-exists", f"{target} already exists; choose another name, or remove it")
            os.rename(path, target)
            placed.append(target)
    except BaseException:
        for path in placed:
            path.unlink(missing_ok=True)
        raise
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
