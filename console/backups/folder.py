"""The folder `backups/` of the state: lists, names, deletes and receives backups."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO

import msgspec

from appliance.home import Home
from console.backups import archive_format
from console.backups.adopt import adopt
from console.backups.archive_format import SQLITE_MAGIC, Summary
from console.backups.create import claim, sweep, workplace
from console.backups.disk_space import DiskSpace, not_written
from console.backups.errors import BackupError
from console.backups.reading import read_summary, read_whole

UPLOAD_AGAIN = frozenset({"damaged", "incomplete"})
"""What may be wrong with an upload because it did not arrive whole."""

Stamp = tuple[int, int]
SQLITE_HEADER_BYTES = 100


class Backup(msgspec.Struct, frozen=True, kw_only=True):
    """`summary` is None for a copy of the database alone, and for an unreadable file, whose `problem` says why."""

    name: str
    size: int
    made: float
    summary: Summary | None = None
    problem: str = ""

    @property
    def is_database(self) -> bool:
        return self.name.endswith(".db")

    @property
    def before_migration(self) -> bool:
        return self.is_database and self.name.startswith("before-")


class BackupFolder:
    """Caches what it has read from each file."""

    def __init__(self, home: Home) -> None:
        self.path = home.root / "backups"
        self._known: dict[str, tuple[Stamp, Backup]] = {}

    def create(self) -> Path:
        try:
            self.path.mkdir(mode=0o700, exist_ok=True)
        except OSError as error:
            raise not_written(self.path, error) from error
        return self.path

    def backups(self) -> list[Backup]:
        """Newest first."""
        found: dict[str, tuple[Stamp, Backup]] = {}
        with suppress(FileNotFoundError):
            for entry in os.scandir(self.path):
                if _is_backup(entry.name) and entry.is_file(follow_symlinks=False):
                    with suppress(FileNotFoundError):
                        found[entry.name] = self._look(entry.name, entry.stat())
        self._known = found
        return sorted((backup for _, backup in found.values()), key=lambda backup: backup.made, reverse=True)

    def find(self, name: str) -> Path:
        path = self.path / name
        if not _is_backup(name) or path.is_symlink() or not path.is_file():
            raise BackupError(
                "not-found",
                f"There is no backup named {name[:100]!r}.",
                f"`ingot backup list` shows the backups in {self.path}.",
                status=404,
            )
        return path

    def delete(self, name: str) -> None:
        path = self.find(name)
        try:
            path.unlink()
        except OSError as error:
            raise BackupError(
                "not-deleted",
                f"{path} could not be deleted: {error.strerror or error}.",
                f"Check the disk and the permissions of {path.parent}, then try again.",
                status=503,
            ) from error

    def _look(self, name: str, found: os.stat_result) -> tuple[Stamp, Backup]:
        stamp = (found.st_mtime_ns, found.st_size)
        known = self._known.get(name)
        return known if known and known[0] == stamp else (stamp, describe(self.path / name, found))


def describe(path: Path, found: os.stat_result) -> Backup:
    made, summary, problem = found.st_mtime, None, ""
    if path.name.endswith(".db"):
        problem = _database_problem(path, found.st_size)
    else:
        try:
            summary = read_summary(path)
            made = summary.made
        except BackupError as error:
            problem = error.message
        except OSError as error:
            problem = f"{path.name} cannot be read: {error.strerror or error}."
    return Backup(name=path.name, size=found.st_size, made=made, summary=summary, problem=problem)


def _database_problem(path: Path, size: int) -> str:
    """What its first bytes show: it is another kind of file, or it is truncated."""
    try:
        with path.open("rb") as file:
            head = file.read(SQLITE_HEADER_BYTES)
    except OSError as error:
        return f"{path.name} cannot be read: {error.strerror or error}."
    if len(head) < SQLITE_HEADER_BYTES or not head.startswith(SQLITE_MAGIC):
        return f"{path.name} is not a database."
    expected = _stated_bytes(head)
    if size < expected:
        return f"{path.name} is incomplete: {size:,} of {expected:,} bytes. Copy it again."
    return ""


def _stated_bytes(head: bytes) -> int:
    """The size of a database by its header; 0 if that does not say it."""
    stated = int.from_bytes(head[16:18])
    page_bytes = 65536 if stated == 1 else stated
    is_stated = head[24:28] == head[92:96]  # old versions of SQLite did not update the page count
    return int.from_bytes(head[28:32]) * page_bytes if is_stated else 0


def _is_backup(name: str) -> bool:
    return bool(archive_format.FILE_NAME.fullmatch(name) or archive_format.DATABASE_NAME.fullmatch(name))


class Incoming:
    """A backup that is being received. It is kept, under a name of ours, if it is valid and complete."""

    def __init__(self, path: Path, file: IO[bytes], room: DiskSpace) -> None:
        self.size = 0
        self._path = path
        self._file = file
        self._room = room

    def write(self, chunk: bytes) -> None:
        self._room.took(len(chunk))
        self._file.write(chunk)
        self.size += len(chunk)

    def keep(self) -> Path:
        """Verify all of it and return its new path. Raises BackupError if it is not a complete backup."""
        self._file.flush()
        os.fsync(self._file.fileno())
        with self._path.open("rb") as file:
            head = file.read(SQLITE_HEADER_BYTES)
        is_database = head.startswith(SQLITE_MAGIC)
        try:
            made = self._try_database(head) if is_database else read_whole(self._path, "The upload").made
        except BackupError as error:
            if error.code not in UPLOAD_AGAIN:
                raise
            raise BackupError(error.code, error.message, "Upload it again.", status=error.status) from error
        for number in range(1, 1000):
            name = archive_format.file_name(made, number)
            name = name.replace("ingot-backup", "received").replace(".tar.gz", ".db") if is_database else name
            with suppress(FileExistsError):
                os.link(self._path, self._path.with_name(name))  # which never replaces an existing file
                return self._path.with_name(name)
        raise BackupError(
            "too-many-backups", "There are already 999 backups with that creation time.", "Delete some.", status=409
        )

    def _try_database(self, head: bytes) -> float:
        """Copy its rows as a restore would, to see that they are complete. Returns the current time, since a database
        does not record when it was copied. Raises BackupError."""
        if self.size < (expected := _stated_bytes(head)):
            raise BackupError("incomplete", f"The upload is incomplete: {self.size:,} of {expected:,} bytes.", "")
        work = workplace(self._path)
        DiskSpace(self._path.parent, "Checking the upload", self.size)
        try:
            work.mkdir(mode=0o700)
            adopt(self._path, work / archive_format.DATABASE, work, "the upload")
        finally:
            shutil.rmtree(work, ignore_errors=True)
        return time.time()


@contextmanager
def incoming(folder: BackupFolder, expected: int) -> Iterator[Incoming]:
    """Receive a backup of about `expected` bytes (0: unknown) into the folder; delete it unless it was kept."""
    path = folder.create() / f".received-{time.time_ns()}.partial"
    sweep(folder.path)
    room = DiskSpace(folder.path, "The upload", expected)
    try:
        handle = claim(path)
        if handle is None:
            raise BackupError("file-exists", f"{path} is in use.", "Try again.", status=409)
        with os.fdopen(handle, "wb") as file:
            yield Incoming(path, file, room)
    except OSError as error:
        raise not_written(path, error) from error
    finally:
        path.unlink(missing_ok=True)
