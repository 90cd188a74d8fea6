"""Copies an unsigned model folder: each file is hashed while it is copied, and the copy is read back and compared. The
folder appears under its name complete, or not at all."""

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
from appliance.bundle.lock import only_one
from appliance.home import sync_folder
from console.models.leftovers import COPY, incoming

WRITE_OUT_BYTES = 64 << 20
"""The most that may wait in memory for the disk, so that progress shows what is really written."""
FILES = 10_000


@dataclass(frozen=True)
class Content:
    """A folder's files with their sizes, and the entries that cannot be copied."""

    files: tuple[tuple[str, int], ...]
    odd: tuple[str, ...] = ()

    @property
    def bytes(self) -> int:
        return sum(size for _, size in self.files)


def content(folder: Path) -> Content:
    """All regular files. Hidden files are not part of a model, and a link could lead anywhere on this machine.

    Raises:
        BundleError: there are more files than a model has.
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
                        "too-many-files",
                        f"{folder.name} contains more than {FILES:,} files and folders; remove those that are not part "
                        "of the model",
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
    """Copy `source` to the new folder `target`; returns the SHA-256 of each file. `report(done, total)` counts each
    byte twice: when it is copied, and when it is read back.

    Raises:
        StoppedError: `stop` was set.
        BundleError: `target` exists, an entry is not a regular file, or a copy differs.
    """
    what = content(source)
    if what.odd:
        raise BundleError(
            "not-a-file",
            f"{source.name} contains {what.odd[0]}, which is not a regular file; copy the file itself there",
        )
    progress = Progress(2 * what.bytes, report)
    digests: dict[str, str] = {}
    with _incoming(target) as folder, Copier(progress.advance, stop) as copier:
        for name, size in what.files:
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            digests[name] = _copy(source / name, folder / name, size, copier)
        for name, size in what.files:
            if digest_of(folder / name, size, copier) != digests[name]:
                raise BundleError(
                    "damaged", f"{name} was read back differently than written; check the disk of {target.parent}"
                )
    return digests


@contextlib.contextmanager
def _incoming(target: Path) -> Iterator[Path]:
    """A hidden folder beside `target` that is renamed to it if the block succeeds, and deleted if not."""
    _refuse_taken(target)
    folder = incoming(target.parent, target.name, COPY)
    with only_one(target.parent):
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
        try:
            yield folder
            for path in [*folder.rglob("*"), folder]:  # a model is not secret, and the engine may run as another user
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
    """The SHA-256 of a file, without keeping it in the page cache."""
    with _opened(path, size) as handle:
        digest = copier.copy(lambda buffer, at: os.preadv(handle, [buffer], at), 0, size, None)
        os.posix_fadvise(handle, 0, 0, os.POSIX_FADV_DONTNEED)
    return digest


def _copy(source: Path, destination: Path, size: int, copier: Copier) -> str:
    with _opened(source, size) as reading, destination.open("xb", buffering=0) as writing:
        writer = _Writer(writing.fileno())
        digest = copier.copy(lambda buffer, at: os.preadv(reading, [buffer], at), 0, size, writer.write)
        if writer.written != size:
            raise BundleError(
                "incomplete",
                f"{source.name} ended after {writer.written:,} of {size:,} bytes; copy it to the USB drive again",
            )
        os.fsync(writing.fileno())
        # So that it is read back from the disk, not from memory.
        os.posix_fadvise(writing.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    return digest


class _Writer:
    """Writes to a file and flushes it to the disk regularly."""

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
    """Open a file safely, even if a link or a pipe has replaced it since it was listed."""
    handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        status = os.fstat(handle)
        if not stat.S_ISREG(status.st_mode) or status.st_size != size:
            raise BundleError(
                "changed", f"{path.name} changed while it was being read; wait until it is complete, then try again"
            )
        yield handle
    finally:
        os.close(handle)


def _refuse_taken(target: Path) -> None:
    if os.path.lexists(target):
        raise BundleError(
            "name-taken", f"a model named {target.name} already exists in {target.parent}; choose another name"
        )
