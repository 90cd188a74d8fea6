"""Creates a backup of the running state. The file gets its name only once it is complete."""

from __future__ import annotations

import contextlib
import fcntl
import gzip
import hashlib
import io
import os
import shutil
import stat
import tarfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, Any, NamedTuple

import msgspec

from appliance import __version__
from appliance.home import Home
from console.backups import archive_format, snapshot
from console.backups.archive_format import BackedUpFile, Manifest, Summary
from console.backups.disk_space import DiskSpace, not_written
from console.backups.errors import BackupError
from console.backups.snapshot import Snapshot, Source

LEVEL = 4
"""For gzip: real logs come out within 5 % of the default level's size, at twice its speed."""

Report = Callable[[int, int], None]


def silent(done: int, total: int) -> None:
    """For callers that show no progress."""


class Made(NamedTuple):
    path: Path
    size: int
    manifest: Manifest
    left_out: list[str]


def create(home: Home, out: Path, *, with_launches: bool = True, report: Report = silent) -> Made:
    """Write a backup to the file `out`, or into the folder `out` under a generated name. Raises BackupError, and
    sqlite3.Error if the database cannot be read."""
    snapshot.require_state(home)
    made = time.time()
    try:
        with _partial(out, made) as (target, partial, handle):
            work = workplace(partial)
            work.mkdir(mode=0o700)
            state = snapshot.take(home, work, with_launches=with_launches)
            room = DiskSpace(partial.parent, "The backup")
            with os.fdopen(handle, "wb", closefd=False) as raw:
                manifest = _write(state, raw, made, with_launches, lambda done: report(done, state.bytes), room)
            os.fsync(handle)
            os.replace(partial, target)
    except OSError as error:
        raise not_written(Path(error.filename) if isinstance(error.filename, str) else out, error) from error
    return Made(target, target.stat().st_size, manifest, state.left_out)


def sweep(folder: Path) -> None:
    """Remove partial files of processes that have ended."""
    for kind in ("ingot-backup", "received"):
        for partial in folder.glob(f".{kind}-*.partial"):
            _sweep(partial)


def _sweep(partial: Path) -> None:
    """The writer holds the file's lock; an unlocked file belongs to a process that has ended."""
    with contextlib.suppress(OSError), partial.open("rb") as file:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        # Another may have swept it before it was locked here, and a third have begun a new one of the same name.
        if os.path.samestat(os.fstat(file.fileno()), os.stat(partial)):
            shutil.rmtree(workplace(partial), ignore_errors=True)
            partial.unlink()


def claim(partial: Path) -> int | None:
    """A new file of this name, open and locked; None if another process is writing it."""
    _sweep(partial)
    try:
        handle = os.open(partial, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    except FileExistsError:
        return None
    with contextlib.suppress(BlockingIOError, FileNotFoundError):  # another process swept it before it was locked
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if os.path.samestat(os.fstat(handle), os.stat(partial)):
            return handle
    os.close(handle)
    return None


@contextlib.contextmanager
def _partial(out: Path, made: float) -> Iterator[tuple[Path, Path, int]]:
    """The backup's final name, and the locked partial file that it is written to, which is removed at the end."""
    folder = out if out.is_dir() else out.parent
    if not folder.is_dir():
        raise BackupError("no-folder", f"There is no folder {folder}.", "Create it first, or choose another file.")
    sweep(folder)
    taken = ""
    for number in range(1, 1000 if out.is_dir() else 2):
        target = folder / archive_format.file_name(made, number) if out.is_dir() else out
        partial = folder / f".{target.name}.partial"
        handle = claim(partial)
        if handle is None:
            taken = f"Another process is writing {target}."
            continue
        try:
            if not os.path.lexists(target):
                yield target, partial, handle
                return
            taken = f"{target} already exists."
        finally:
            shutil.rmtree(workplace(partial), ignore_errors=True)
            partial.unlink(missing_ok=True)
            os.close(handle)
    raise BackupError("file-exists", taken, "Choose another name, or delete that file.", status=409)


def workplace(partial: Path) -> Path:
    """The folder for temporary files beside a partial file; it is removed with it."""
    return partial.with_suffix(".work")


def _write(
    state: Snapshot, raw: IO[bytes], made: float, with_launches: bool, report: Callable[[int], None], room: DiskSpace
) -> Manifest:
    summary = Summary(
        kind=archive_format.KIND,
        format=archive_format.FORMAT,
        ingot=__version__,
        schema=state.schema,
        made=made,
        with_launches=with_launches,
        bytes=state.bytes,
        contents=state.contents,
    )
    counted = _Counted(raw, room)
    with (
        gzip.GzipFile("", "wb", LEVEL, counted, mtime=0) as packed,
        tarfile.open(fileobj=packed, mode="w", format=tarfile.PAX_FORMAT) as archive,
    ):
        writer = _Writer(archive, made, report)
        writer.add_bytes(archive_format.SUMMARY, _json(summary))
        writer.files.clear()  # not listed in the manifest, which repeats it
        writer.add_source(Source(archive_format.DATABASE, state.database, state.database.stat().st_size))
        if len(state.files) > archive_format.MOST_FILES:
            raise BackupError(
                "too-many-files",
                f"The state has {len(state.files):,} files. A backup can hold {archive_format.MOST_FILES:,}.",
                "Delete old launches, or leave launches out of the backup.",
            )
        for name, content in state.active.items():
            writer.add_bytes(name, content)
        for source in state.files:
            writer.add_source(source)
        manifest = Manifest(**msgspec.structs.asdict(summary), files=writer.files)
        writer.add_bytes(archive_format.MANIFEST, _json(manifest))
    return manifest


def _json(value: Summary) -> bytes:
    return msgspec.json.format(msgspec.json.encode(value))


class _Writer:
    """Adds files to the archive, without this machine's owners and modes, and keeps their checksums in `files`."""

    def __init__(self, archive: tarfile.TarFile, made: float, report: Callable[[int], None]) -> None:
        self.files: list[BackedUpFile] = []
        self._archive = archive
        self._made = made
        self._report = report
        self._done = 0

    def add_bytes(self, name: str, content: bytes) -> None:
        self._add(name, io.BytesIO(content), len(content), self._made)

    def add_source(self, source: Source) -> None:
        """Append-only files are copied up to their size at the snapshot; files deleted since, with their launch, are
        left out."""
        try:
            handle = os.open(source.path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        except FileNotFoundError:
            return
        with os.fdopen(handle, "rb") as file:
            found = os.fstat(handle)
            if stat.S_ISREG(found.st_mode):
                appended = source.name.endswith((".jsonl", ".log"))
                size = min(source.size, found.st_size) if appended else found.st_size
                self._add(source.name, file, size, found.st_mtime)

    def _add(self, name: str, content: IO[bytes], size: int, written: float) -> None:
        member = tarfile.TarInfo(name)
        member.size, member.mode, member.mtime = size, 0o600, written
        hashed = _Hashed(content, self._advance)
        self._archive.addfile(member, hashed)
        # tarfile would keep a list of all of them.
        self._archive.members.clear()  # type: ignore[attr-defined]
        self.files.append(BackedUpFile(name, size, hashed.hexdigest()))

    def _advance(self, count: int) -> None:
        self._done += count
        self._report(self._done)


class _Hashed:
    """Hashes a file as it is read."""

    def __init__(self, file: IO[bytes], advance: Callable[[int], None]) -> None:
        self._file = file
        self._advance = advance
        self._sha256 = hashlib.sha256()

    def read(self, size: int = -1) -> bytes:
        content = self._file.read(size)
        self._sha256.update(content)
        self._advance(len(content))
        return content

    def hexdigest(self) -> str:
        return self._sha256.hexdigest()


class _Counted:
    """Writes to a file while its disk has enough free space."""

    def __init__(self, file: IO[bytes], room: DiskSpace) -> None:
        self._file = file
        self._room = room

    def write(self, content: Any) -> int:
        self._room.took(len(content))
        return self._file.write(content)

    def flush(self) -> None:
        self._file.flush()
