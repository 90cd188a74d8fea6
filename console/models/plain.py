"""Copy a model folder that nobody signed: each file's digest is taken while it is copied, and compared with what the
disk then gives back. The folder appears under its name as a whole, or not at all."""

from __future__ import annotations

import contextlib
import os
import shutil
import stat
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from appliance.bundle.copying import Copier, Progress, Report, write_all
from appliance.bundle.errors import BundleError
from appliance.bundle.install import only_one
from appliance.home import sync_folder
from console.models.leftovers import COPY, incoming

WRITE_OUT_BYTES = 64 << 20
"""So much at most waits in memory for the disk: the bar shows what was written, and the machine keeps its memory."""
FILES = 10_000


@dataclass(frozen=True)
class Content:
    """What of a folder would be copied: paths below it with their sizes; and what cannot be."""

    files: tuple[tuple[str, int], ...]
    odd: tuple[str, ...] = ()

    @property
    def bytes(self) -> int:
        return sum(size for _, size in self.files)


def content(folder: Path) -> Content:
    """All regular files. What is hidden is not part of a model; a link could lead anywhere on this machine.

    Raises:
        BundleError: there are more than a model has.
    """
    files: list[tuple[str, int]] = []
    odd: list[str] = []
    waiting = [folder]
    seen = 0
    while waiting:
        with os.scandir(waiting.pop()) as entries:
            for entry in entries:
                seen += 1
                if seen > FILES:
                    raise BundleError(
                        f"{folder.name} holds more than {FILES:,} files and folders; leave out what is none"
                    )
                name = str(Path(entry.path).relative_to(folder))
                if entry.name.startswith("."):
                    continue
                if not name.isprintable():
                    odd.append(ascii(name)[1:-1])
                elif entry.is_file(follow_symlinks=False):
                    files.append((name, entry.stat(follow_symlinks=False).st_size))
                elif entry.is_dir(follow_symlinks=False):
                    waiting.append(Path(entry.path))
                else:
                    odd.append(name)
    return Content(tuple(sorted(files)), tuple(sorted(odd)))


def copy_folder(source: Path, target: Path, report: Report, stop: threading.Event) -> dict[str, str]:
    """Copy `source` to the new folder `target`; the SHA-256 of each file by its path. `report(done, total)` counts each
    byte twice: as it is copied, and as it is read back.

    Raises:
        StoppedError: `stop` was set.
        BundleError: something is there already, or a file is not one or does not come back as it was.
    """
    what = content(source)
    if what.odd:
        raise BundleError(f"{source.name} holds {what.odd[0]}, which is no plain file; put the file itself there")
    progress = Progress(2 * what.bytes, report)
    digests: dict[str, str] = {}
    with _incoming(target) as folder, Copier(progress.advance, stop) as copier:
        for name, size in what.files:
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            digests[name] = _copy(source / name, folder / name, size, copier)
        for name, size in what.files:
            if digest_of(folder / name, size, copier) != digests[name]:
                raise BundleError(f"{name} does not come back as it was written; check the disk of {target.parent}")
    return digests


@contextlib.contextmanager
def _incoming(target: Path) -> Iterator[Path]:
    """A hidden folder beside `target` that takes its name when the block ends well, and is gone when it does not."""
    _refuse_taken(target)
    folder = incoming(target.parent, target.name, COPY)
    with only_one(target.parent):
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
        try:
            yield folder
            for path in [*folder.rglob("*"), folder]:  # a model is no secret, and an engine may run as somebody else
                path.chmod(0o755 if path.is_dir() else 0o644)
                if path.is_dir():
                    sync_folder(path)
            _refuse_taken(target)
            os.rename(folder, target)
            sync_folder(target.parent)
        except BaseException:
            shutil.rmtree(folder, ignore_errors=True)
            raise


def digest_of(path: Path, size: int, copier: Copier) -> str:
    """The SHA-256 of what the file holds; nothing of it stays in memory."""
    with _opened(path, size) as handle:
        digest = copier.copy(lambda buffer, at: os.preadv(handle, [buffer], at), 0, size, None)
        os.posix_fadvise(handle, 0, 0, os.POSIX_FADV_DONTNEED)
    return digest


def _copy(source: Path, destination: Path, size: int, copier: Copier) -> str:
    with _opened(source, size) as reading, destination.open("xb", buffering=0) as writing:
        writer = _Writer(writing.fileno())
        digest = copier.copy(lambda buffer, at: os.preadv(reading, [buffer], at), 0, size, writer.write)
        if writer.written != size:
            raise BundleError(f"{source.name} ended after {writer.written} of {size} bytes; put it on the stick again")
        os.fsync(writing.fileno())
        # It is to be read back from the disk, not from memory.
        os.posix_fadvise(writing.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    return digest


class _Writer:
    """Writes to a file and has the disk take it now and then."""

    def __init__(self, handle: int) -> None:
        self.written = 0
        self._handle = handle
        self._waiting = 0

    def write(self, piece: memoryview) -> None:
        self._waiting += len(piece)
        self.written += len(piece)
        write_all(self._handle, piece)
        if self._waiting >= WRITE_OUT_BYTES:
            os.fdatasync(self._handle)
            self._waiting = 0


@contextlib.contextmanager
def _opened(path: Path, size: int) -> Iterator[int]:
    """Neither a link nor a pipe that took the file's place since it was listed is waited for or followed."""
    handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        status = os.fstat(handle)
        if not stat.S_ISREG(status.st_mode) or status.st_size != size:
            raise BundleError(f"{path.name} changed while it was read; wait until it is whole and try again")
        yield handle
    finally:
        os.close(handle)


def _refuse_taken(target: Path) -> None:
    if os.path.lexists(target):
        raise BundleError(f"a model named {target.name} is already in {target.parent}; choose another name")
