"""A cast's folder while it is made: who may write into it, and what of it can be taken over."""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Self

import msgspec

from kernels.cast import manifest
from kernels.cast.errors import CastError
from kernels.cast.manifest import CastVariant, File, Manifest, Versions

TRITON = "triton"
JOURNAL = "unfinished.jsonl"
# Versions that all of a cast's kernels have in common; FlashInfer's modules are each looked at by themselves.
_SAME = ("ingot", "triton", "triton_build", "python", "ptxas", "libc")


class Head(msgspec.Struct, frozen=True, kw_only=True):
    """The journal's first line: what is being cast, and how many variants that is."""

    architecture: str
    versions: Versions
    planned: int


class Entry(msgspec.Struct, frozen=True, kw_only=True):
    """A variant that is done, with its files."""

    variant: CastVariant
    files: tuple[File, ...]


class Journal:
    """What of an unfinished cast is done; it has as many entries as its length says."""

    def __init__(self, folder: Path, head: Head, entries: list[Entry]) -> None:
        self._folder = folder
        self._variants = {entry.variant for entry in entries}
        partial = folder / f"{JOURNAL}.partial"
        self._file: IO[bytes] = partial.open("wb")
        self._line(head)
        for entry in entries:
            self._line(entry)
        partial.rename(folder / JOURNAL)  # only now, so that the one before is there if the disk is full

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    def __len__(self) -> int:
        return len(self._variants)

    def write(self, variant: CastVariant) -> bool:
        """Note that it is done; the answer is whether that is new."""
        if variant in self._variants:
            return False
        files = tuple(_record(path, self._folder) for path in _files_of(variant, self._folder))
        self._line(Entry(variant=variant, files=files))
        self._variants.add(variant)
        return True

    def drop_all_but(self, keys: set[str]) -> None:
        for place in (self._folder / TRITON).iterdir():
            if place.name not in keys:
                shutil.rmtree(place)

    def remove(self) -> None:
        (self._folder / JOURNAL).unlink()

    def _line(self, value: msgspec.Struct) -> None:
        self._file.write(msgspec.json.encode(value) + b"\n")
        self._file.flush()


def open_folder(folder: Path, head: Head) -> Journal:
    """Make `folder`, or take over what a cast of the same architecture and versions has left in it.

    Raises:
        CastError: it holds a cast of something else, or no cast at all.
    """
    folder.mkdir(parents=True, exist_ok=True)
    entries: list[Entry] = []
    if (folder / manifest.NAME).exists():
        there = manifest.parse((folder / manifest.NAME).read_bytes(), folder / manifest.NAME)
        _require_same(folder, there, head)
        by_key = _by_key(there.files)
        entries = [_entry(variant, by_key) for variant in there.variants]
    elif (folder / JOURNAL).exists():
        before, entries = read_journal(folder)
        _require_same(folder, before, head)
    elif any(folder.iterdir()):
        raise CastError(
            "cast-folder-in-use", f"{folder} is not empty, and what is in it is no cast.", "Name an empty folder."
        )
    whole = [entry for entry in entries if all(is_unchanged(file, folder) for file in entry.files)]
    journal = Journal(folder, head, whole)
    (folder / manifest.NAME).unlink(missing_ok=True)
    (folder / TRITON).mkdir(exist_ok=True)
    journal.drop_all_but({key for entry in whole for key in entry.variant.keys})
    return journal


def read_journal(folder: Path) -> tuple[Head, list[Entry]]:
    """What an interrupted cast has noted. A last line that was cut short counts as not there."""
    path = folder / JOURNAL
    lines = path.read_bytes().split(b"\n")
    try:
        head = msgspec.json.decode(lines[0], type=Head)
        return head, [msgspec.json.decode(line, type=Entry) for line in lines[1:-1]]
    except msgspec.MsgspecError as error:
        raise CastError("cast-unreadable", f"{path} cannot be read: {error}.", "Name an empty folder.") from error


def record_files(folder: Path) -> Iterator[File]:
    """Every file of the cast but its manifest and its journal, in order."""
    for place in sorted(folder.rglob("*")):
        if place.is_file() and place.name not in (manifest.NAME, JOURNAL) and ".work" not in place.parts:
            yield _record(place, folder)


def is_unchanged(file: File, folder: Path) -> bool:
    try:
        content = (folder / file.path).read_bytes()
    except OSError:
        return False
    return hashlib.sha256(content).hexdigest() == file.sha256


def _record(place: Path, folder: Path) -> File:
    content = place.read_bytes()
    path = place.relative_to(folder).as_posix()
    return File(path=path, size=len(content), sha256=hashlib.sha256(content).hexdigest())


def _files_of(variant: CastVariant, folder: Path) -> list[Path]:
    return [place for key in variant.keys for place in sorted((folder / TRITON / key).iterdir())]


def _by_key(files: tuple[File, ...]) -> dict[str, list[File]]:
    found: dict[str, list[File]] = {}
    for file in files:
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
        "cast-folder-in-use",
        f"{folder} holds a cast {what}, which a cast for {wanted.architecture} with what is installed here cannot take "
        "over.",
        "Name another folder, or remove that one.",
        f"rm -r {folder}",
    )
