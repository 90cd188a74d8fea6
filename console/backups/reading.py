"""Reads a backup that may come from anywhere, such as a stick: every name, size and checksum is looked at, nothing is
read into memory whole, and nothing but plain files of known names is taken."""

from __future__ import annotations

import contextlib
import gzip
import hashlib
import tarfile
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, TypeVar

import msgspec

from console.backups import format
from console.backups.create import Report, silent
from console.backups.format import BackedUpFile, BackupError, Manifest, Summary
from migrations import REVISIONS

S = TypeVar("S", bound=Summary)
_CHUNK = 1 << 20
_MOST_AT_ONCE = 1 << 20
"""What tarfile may ask for at once by itself: a header, or the names of a file."""

Sink = Callable[[str, float], contextlib.AbstractContextManager[Callable[[bytes], object]]]
"""Given a file's name and when it was written; what it opens is given the content."""

DAMAGED = (tarfile.TarError, zlib.error, ValueError, OverflowError, RecursionError)
"""What gzip and tarfile say of bytes that are no archive, or no more one."""


def read_summary(path: Path) -> Summary:
    """What the backup says it is, from its first kilobytes. Raises BackupError, OSError."""
    with path.open("rb") as raw, _opened(raw, path.name) as archive:
        return _summary(archive, path.name)


def read_whole(path: Path, name: str) -> Manifest:
    """Compare all of it with its manifest, and keep nothing. Raises BackupError, OSError."""

    def nowhere(file: str, written: float) -> contextlib.AbstractContextManager[Callable[[bytes], object]]:
        return contextlib.nullcontext(len)

    with path.open("rb") as raw:
        return read(raw, name, path.stat().st_size, nowhere, lambda summary: None)


def require_known(summary: Summary, name: str) -> None:
    """Refuse what a newer Ingot made, and name that."""
    by = f"{name} was made by Ingot {summary.ingot[:40]}"
    if summary.format > format.FORMAT:
        raise BackupError(
            f"{by}, in format {summary.format}; this version reads up to {format.FORMAT}.",
            f"Install Ingot {summary.ingot[:40]} or newer, and restore it there.",
        )
    if summary.schema not in REVISIONS:
        raise BackupError(
            f"{by}; its database has the schema {summary.schema[:40]!r}, and this version knows up to {REVISIONS[-1]}.",
            f"Install Ingot {summary.ingot[:40]} or newer, and restore it there.",
        )


def read(
    raw: IO[bytes], name: str, size: int, sink: Sink, begin: Callable[[Summary], None], report: Report = silent
) -> Manifest:
    """Pass every file to `sink` and compare it with the manifest. `begin` is given the summary first; `report` hears
    how much of the packed file has been read. Raises BackupError where anything is not as it should be."""
    with _opened(raw, name) as archive:
        summary = _summary(archive, name)
        require_known(summary, name)
        begin(summary)
        left = summary.bytes + format.SLACK_BYTES
        found: dict[str, BackedUpFile] = {}
        while (member := archive.next()) is not None:
            # The list that tarfile keeps, however many there are.
            archive.members.clear()  # type: ignore[attr-defined]
            if member.name == format.MANIFEST:
                manifest = _document(archive, member, name, Manifest)
                break
            left -= member.size
            known = _is_plain(member) and format.is_allowed(member.name) and member.name not in found
            if not known or left < 0 or len(found) > format.MOST_FILES:
                raise _foreign(name, member.name)
            source = archive.extractfile(member)
            assert source is not None
            with source, sink(member.name, member.mtime) as write:
                sha256 = _copy(source, write, lambda: report(raw.tell(), size))
            found[member.name] = BackedUpFile(member.name, member.size, sha256)
        else:
            raise BackupError(f"{name} is incomplete: it ends before its manifest.", "Copy it again.")
        if archive.next() is not None or any(_rest(archive)):
            raise _foreign(name, "something behind its manifest")
    _compare(found, manifest, name)
    if msgspec.structs.asdict(summary) != {key: getattr(manifest, key) for key in Summary.__struct_fields__}:
        raise BackupError(f"The manifest of {name} does not match its summary.", "Copy the backup again.")
    report(size, size)
    return manifest


def _rest(archive: tarfile.TarFile) -> bytes:
    """What fills the archive up; read, so that gzip compares its own checksum and misses an end that is not there."""
    assert archive.fileobj is not None
    rest = archive.fileobj.read(_MOST_AT_ONCE)
    return rest if not archive.fileobj.read(1) else b"more"


def _compare(found: dict[str, BackedUpFile], manifest: Manifest, name: str) -> None:
    for expected in manifest.files:
        file = found.pop(expected.path, None)
        if file is None:
            raise BackupError(f"{name} lacks {expected.path!r}, which its manifest lists.", "Copy the backup again.")
        if file != expected:
            raise BackupError(f"{file.path} in {name} is damaged: its checksum differs.", "Copy the backup again.")
    if found:
        raise _foreign(name, min(found))
    if format.DATABASE not in {file.path for file in manifest.files}:
        raise BackupError(f"{name} holds no database.", "Make the backup again.")


def _copy(source: IO[bytes], write: Callable[[bytes], object], advance: Callable[[], None]) -> str:
    sha256 = hashlib.sha256()
    while chunk := source.read(_CHUNK):
        sha256.update(chunk)
        write(chunk)
        advance()
    return sha256.hexdigest()


@contextlib.contextmanager
def _opened(raw: IO[bytes], name: str) -> Iterator[tarfile.TarFile]:
    try:
        with (
            gzip.GzipFile(fileobj=raw, mode="rb") as packed,
            tarfile.open(fileobj=_Bounded(packed), mode="r:") as archive,  # type: ignore[call-overload]
        ):
            yield archive
    except EOFError as error:
        raise BackupError(f"{name} is incomplete: it ends too early.", "Copy it again.") from error
    except gzip.BadGzipFile as error:
        raise format.no_backup(name) from error
    except DAMAGED as error:
        raise BackupError(f"{name} is damaged or not an Ingot backup ({error}).", "Copy it again.") from error


def _summary(archive: tarfile.TarFile, name: str) -> Summary:
    member = archive.next()
    if member is None or member.name != format.SUMMARY:
        raise format.no_backup(name)
    summary = _document(archive, member, name, Summary)
    if summary.kind != format.KIND or summary.bytes < 0 or not 0 <= summary.made < format.LATEST:
        raise format.no_backup(name)
    return summary


def _document(archive: tarfile.TarFile, member: tarfile.TarInfo, name: str, kind: type[S]) -> S:
    if not _is_plain(member) or member.size > format.MOST_JSON_BYTES:
        raise _foreign(name, member.name)
    source = archive.extractfile(member)
    assert source is not None
    with source:
        raw = b"".join(iter(lambda: source.read(_CHUNK), b""))
    try:
        return msgspec.json.decode(raw, type=kind)
    except msgspec.MsgspecError as error:
        raise BackupError(f"{member.name} in {name} cannot be read: {error}.", "Copy the backup again.") from error


def _is_plain(member: tarfile.TarInfo) -> bool:
    return member.isreg() and not member.issparse() and member.size >= 0


def _foreign(name: str, what: str) -> BackupError:
    return BackupError(
        f"{name} contains {what[:120]!r}, which does not belong in a backup: the file was changed.",
        "Do not restore it.",
    )


class _Bounded:
    """A file that is read in pieces: tarfile would read a header of any stated length into memory."""

    def __init__(self, file: gzip.GzipFile) -> None:
        self._file = file

    def read(self, size: int = -1) -> bytes:
        if not 0 <= size <= _MOST_AT_ONCE:
            raise tarfile.ReadError("a header is too long")
        return self._file.read(size)

    def seek(self, position: int, whence: int = 0) -> int:
        return self._file.seek(position, whence)

    def tell(self) -> int:
        return self._file.tell()
