"""The folder of a cast in progress: locking, the journal, and what an earlier cast left that can be reused."""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Self

import msgspec

from kernels.cast import files, manifest
from kernels.cast.errors import CastError
from kernels.cast.files import FLASHINFER, TRITON
from kernels.cast.manifest import CastVariant, File, Manifest, Versions

JOURNAL = "unfinished.jsonl"
# Versions that all kernels of a cast share; FlashInfer's modules are checked one by one.
_SAME = ("ingot", "triton", "triton_build", "python", "ptxas", "libc")


class Head(msgspec.Struct, frozen=True, kw_only=True):
    """The journal's first line: what is being cast, and the number of variants. `profiles` and `triton_only` are the
    command's options."""

    architecture: str
    versions: Versions
    planned: int
    profiles: tuple[str, ...] = ()
    triton_only: bool = False


class Entry(msgspec.Struct, frozen=True, kw_only=True):
    """A finished variant, with its files."""

    variant: CastVariant
    files: tuple[File, ...]


class Journal:
    """The finished variants of an unfinished cast; its length is their number. `before` is the complete cast that this
    one extends, if any."""

    def __init__(self, folder: Path, head: Head, entries: list[Entry], before: Manifest | None = None) -> None:
        self.before = before
        self._folder = folder
        self._variants = {entry.variant for entry in entries}
        partial = folder / f"{JOURNAL}.partial"
        self._file: IO[bytes] = partial.open("wb")
        self._line(head)
        for entry in entries:
            self._line(entry)
        partial.rename(folder / JOURNAL)  # only now, so that the old journal survives a full disk

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    def __len__(self) -> int:
        return len(self._variants)

    def write(self, variant: CastVariant) -> bool:
        """Record that it is done; returns whether that is new."""
        if variant in self._variants:
            return False
        self._line(Entry(variant=variant, files=tuple(record_files(self._folder, [variant]))))
        self._variants.add(variant)
        return True

    def drop_all_but(self, keys: set[str]) -> None:
        drop_folders(self._folder / TRITON, but=keys)

    def remove(self) -> None:
        (self._folder / JOURNAL).unlink()

    def _line(self, value: msgspec.Struct) -> None:
        self._file.write(msgspec.json.encode(value) + b"\n")
        self._file.flush()


@contextmanager
def alone_in(folder: Path) -> Iterator[None]:
    """Create `folder` and lock it. Raises CastError while another cast holds the lock."""
    folder.mkdir(parents=True, exist_ok=True)
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise CastError(
                "cast-folder-in-use",
                f"Another `ingot cast` is using {folder}.",
                "Wait for it to finish, or choose another folder.",
            ) from None
        yield
    finally:
        os.close(handle)


def open_folder(folder: Path, head: Head) -> Journal:
    """Reuse what a cast of the same architecture and versions has left in `folder`. The manifest of a complete cast
    stays until a new one replaces it.

    Raises:
        CastError: it holds a different cast, or something else.
    """
    for place in (folder / TRITON, folder / FLASHINFER):
        if place.is_symlink():
            raise CastError(
                "cast-folder-link",
                f"{place} is a symbolic link. A cast keeps its files in its own folder.",
                "Choose another folder.",
            )
    entries: list[Entry] = []
    before: Manifest | None = None
    if (folder / manifest.NAME).exists():
        before = manifest.parse((folder / manifest.NAME).read_bytes(), folder / manifest.NAME)
        _require_same(folder, before, head)
        by_key = _by_key(before.files)
        entries = [_entry(variant, by_key) for variant in before.variants]
    if (folder / JOURNAL).exists():
        unfinished, more = read_journal(folder)
        _require_same(folder, unfinished, head)
        entries = list(dict.fromkeys([*entries, *more]))
    elif before is None and any(folder.iterdir()):
        raise CastError(
            "cast-folder-not-empty", f"{folder} is not empty and does not hold a cast.", "Choose an empty folder."
        )
    whole = [entry for entry in entries if all(is_unchanged(file, folder) for file in entry.files)]
    journal = Journal(folder, head, whole, before)
    (folder / TRITON).mkdir(exist_ok=True)
    journal.drop_all_but({key for entry in whole for key in entry.variant.keys})
    return journal


def read_journal(folder: Path) -> tuple[Head, list[Entry]]:
    """The journal of an interrupted cast. A truncated last line is ignored."""
    path = folder / JOURNAL
    try:
        lines = path.read_bytes().split(b"\n")
    except OSError as error:
        raise CastError(
            "cast-unreadable",
            f"{path} cannot be read: {error.strerror}.",
            "Give this user read access to the cast's folder, or choose another one.",
        ) from None
    try:
        head = msgspec.json.decode(lines[0], type=Head)
        return head, [msgspec.json.decode(line, type=Entry) for line in lines[1:-1]]
    except msgspec.MsgspecError as error:
        raise CastError("cast-unreadable", f"{path} cannot be read: {error}.", "Choose an empty folder.") from error


def record_files(folder: Path, variants: Sequence[CastVariant], modules: Sequence[str] = ()) -> Iterator[File]:
    """The files of `variants` and of FlashInfer's `modules`, each once and in order. Other files in the folder, such as
    an editor's backup, are not part of the cast."""
    places = {folder / TRITON / key for variant in variants for key in variant.keys}
    places |= {folder / FLASHINFER / module for module in modules}
    for place in sorted(path for folder_of_one in places for path in folder_of_one.iterdir()):
        path = place.relative_to(folder).as_posix()
        if files.is_path(path) and place.is_file():
            content = files.read(folder, path)
            yield File(path=path, size=len(content), sha256=hashlib.sha256(content).hexdigest())


def drop_folders(place: Path, *, but: set[str]) -> None:
    """Remove every folder in `place` except those in `but`. Plain files do not come from a cast and stay."""
    for entry in place.iterdir() if place.is_dir() else ():
        if entry.is_symlink() and entry.is_dir():
            entry.unlink()
        elif entry.is_dir() and entry.name not in but:
            shutil.rmtree(entry)


def is_unchanged(file: File, folder: Path) -> bool:
    try:
        content = files.read(folder, file.path)
    except OSError:
        return False
    return hashlib.sha256(content).hexdigest() == file.sha256


def _by_key(listed: tuple[File, ...]) -> dict[str, list[File]]:
    found: dict[str, list[File]] = {}
    for file in listed:
        found.setdefault(file.path.split("/")[1], []).append(file)
    return found


def _entry(variant: CastVariant, by_key: dict[str, list[File]]) -> Entry:
    return Entry(variant=variant, files=tuple(file for key in variant.keys for file in by_key.get(key, [])))


def _require_same(folder: Path, there: Head | Manifest, wanted: Head) -> None:
    if there.architecture != wanted.architecture:
        what = f"for {there.architecture}"
    else:
        before, now = msgspec.to_builtins(there.versions), msgspec.to_builtins(wanted.versions)
        different = [f"{name} {before[name]}" for name in _SAME if before[name] != now[name]]
        what = f"made with {', '.join(different)}"
        if not different:
            return
    raise CastError(
        "cast-folder-other-cast",
        f"{folder} holds a cast {what}. A cast for {wanted.architecture} with the versions installed here needs a "
        "folder of its own.",
        "Choose another folder.",
    )
