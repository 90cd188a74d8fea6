"""Reads an untrusted backup, such as one from a USB drive: every name, size and checksum is verified, no file is read
into memory whole, and only plain files with known names are accepted."""

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

from console.backups import archive_format
from console.backups.archive_format import BackedUpFile, Manifest, Summary
from console.backups.create import Report, silent
from console.backups.errors import BackupError
from migrations import REVISIONS

S = TypeVar("S", bound=Summary)
COPY_AGAIN = "Copy the backup again."
_CHUNK = 1 << 20
_MOST_AT_ONCE = 1 << 20
"""The most that tarfile may read at once on its own: a header, or the names of a file."""

Sink = Callable[[str, float], contextlib.AbstractContextManager[Callable[[bytes], object]]]
"""Called with a file's name and modification time; what it opens receives the content."""

DAMAGED = (tarfile.TarError, zlib.error, ValueError, OverflowError, RecursionError)
"""What gzip and tarfile raise for bytes that are not, or no longer, an archive."""


def read_summary(path: Path) -> Summary:
    """The backup's summary, from its first kilobytes. Raises BackupError, OSError."""
    with path.open("rb") as raw, _opened(raw, path.name) as archive:
        return _summary(archive, path.name)


def read_whole(path: Path, name: str) -> Manifest:
    """Verify all of it against its manifest, and keep nothing. Raises BackupError, OSError."""

    def nowhere(file: str, written: float) -> contextlib.AbstractContextManager[Callable[[bytes], object]]:
        return contextlib.nullcontext(len)

    with path.open("rb") as raw:
        return read(raw, name, path.stat().st_size, nowhere, lambda summary: None)


def require_known(summary: Summary, name: str) -> None:
    """Refuse a backup made by a newer Ingot, and name that version."""
    by = f"{name} was created by Ingot {summary.ingot[:40]}"
    if summary.format > archive_format.FORMAT:
        raise BackupError(
            "newer-format",
            f"{by} in format {summary.format}. This version supports formats up to {archive_format.FORMAT}.",
            f"Install Ingot {summary.ingot[:40]} or newer, and restore it there.",
        )
    if summary.schema not in REVISIONS:
        raise BackupError(
            "newer-schema",
            f"{by} with database schema {summary.schema[:40]!r}. This version supports schemas up to {REVISIONS[-1]}.",
            f"Install Ingot {summary.ingot[:40]} or newer, and restore it there.",
        )


def read_database(raw: IO[bytes], name: str, write: Callable[[bytes], object]) -> Summary:
    """Pass only the database to `write`, and verify nothing; what follows it is not read. Raises BackupError."""
    with _opened(raw, name) as archive:
        summary = _summary(archive, name)
        require_known(summary, name)
        while (member := archive.next()) is not None:
            if member.name == archive_format.DATABASE and _is_plain(member):
                source = archive.extractfile(member)
                assert source is not None
                with source:
                    _copy(source, write, lambda: None)
                return summary
            archive.members.clear()  # type: ignore[attr-defined]
    raise _incomplete(name, "it contains no database")


def read(
    raw: IO[bytes], name: str, size: int, sink: Sink, begin: Callable[[Summary], None], report: Report = silent
) -> Manifest:
    """Pass every file to `sink` and verify it against the manifest. `begin` gets the summary first; `report` gets
    the number of compressed bytes read. Raises BackupError if anything is wrong."""
    with _opened(raw, name) as archive:
        summary = _summary(archive, name)
        require_known(summary, name)
        begin(summary)
        left = summary.bytes + archive_format.SLACK_BYTES
        found: dict[str, BackedUpFile] = {}
        while (member := archive.next()) is not None:
            # tarfile would keep a list of all of them.
            archive.members.clear()  # type: ignore[attr-defined]
            if member.name == archive_format.MANIFEST:
                manifest = _document(archive, member, name, Manifest)
                break
            left -= member.size
            known = _is_plain(member) and archive_format.is_allowed(member.name) and member.name not in found
            if not known or left < 0 or len(found) > archive_format.MOST_FILES:
                raise _foreign(name, member.name)
            source = archive.extractfile(member)
            assert source is not None
            with source, sink(member.name, member.mtime) as write:
                sha256 = _copy(source, write, lambda: report(raw.tell(), size))
            found[member.name] = BackedUpFile(member.name, member.size, sha256)
        else:
            raise _incomplete(name, "its manifest is missing")
        if archive.next() is not None or any(_rest(archive)):
            raise _foreign(name, "data after its manifest")
    _compare(found, manifest, name)
    if msgspec.structs.asdict(summary) != {key: getattr(manifest, key) for key in Summary.__struct_fields__}:
        raise BackupError("damaged", f"The manifest of {name} does not match its summary.", COPY_AGAIN)
    report(size, size)
    return manifest


def _rest(archive: tarfile.TarFile) -> bytes:
    """The padding at the end; read it, so that gzip checks its checksum and notices a missing end."""
    assert archive.fileobj is not None
    rest = archive.fileobj.read(_MOST_AT_ONCE)
    return rest if not archive.fileobj.read(1) else b"more"


def _compare(found: dict[str, BackedUpFile], manifest: Manifest, name: str) -> None:
    for expected in manifest.files:
        file = found.pop(expected.path, None)
        if file is None:
            raise BackupError("incomplete", f"{expected.path!r} is missing from {name}.", COPY_AGAIN)
        if file != expected:
            raise BackupError("damaged", f"{file.path} in {name} is damaged: its checksum differs.", COPY_AGAIN)
    if found:
        raise _foreign(name, min(found))
    if archive_format.DATABASE not in {file.path for file in manifest.files}:
        raise BackupError("incomplete", f"{name} contains no database.", "Create the backup again.")


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
        raise _incomplete(name, "it ends too early") from error
    except gzip.BadGzipFile as error:
        raise _no_backup(name) from error
    except DAMAGED as error:
        raise BackupError("damaged", f"{name} is damaged or not an Ingot backup ({error}).", COPY_AGAIN) from error


def _summary(archive: tarfile.TarFile, name: str) -> Summary:
    member = archive.next()
    if member is None or member.name != archive_format.SUMMARY:
        raise _no_backup(name)
    summary = _document(archive, member, name, Summary)
    if summary.kind != archive_format.KIND or summary.bytes < 0 or not 0 <= summary.made < archive_format.LATEST:
        raise _no_backup(name)
    return summary


def _document(archive: tarfile.TarFile, member: tarfile.TarInfo, name: str, kind: type[S]) -> S:
    if not _is_plain(member) or member.size > archive_format.MOST_JSON_BYTES:
        raise _foreign(name, member.name)
    source = archive.extractfile(member)
    assert source is not None
    with source:
        raw = b"".join(iter(lambda: source.read(_CHUNK), b""))
    try:
        return msgspec.json.decode(raw, type=kind)
    except msgspec.MsgspecError as error:
        raise BackupError("damaged", f"{member.name} in {name} cannot be read: {error}.", COPY_AGAIN) from error


def _is_plain(member: tarfile.TarInfo) -> bool:
    return member.isreg() and not member.issparse() and member.size >= 0


def _incomplete(name: str, why: str) -> BackupError:
    return BackupError("incomplete", f"{name} is incomplete: {why}.", COPY_AGAIN)


def _no_backup(name: str) -> BackupError:
    return BackupError(
        "not-a-backup", f"{name} is not an Ingot backup.", "Choose a file that `ingot backup create` made."
    )


def _foreign(name: str, what: str) -> BackupError:
    return BackupError(
        "tampered",
        f"{name} contains {what[:120]!r}, which does not belong in a backup: somebody changed the file.",
        "Do not restore it.",
    )


class _Bounded:
    """Limits each read: tarfile would read a header of any stated length into memory."""

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
