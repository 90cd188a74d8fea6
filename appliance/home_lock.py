"""One `ingot serve`, and one console, per state folder: a lock that the kernel lets go of however its holder dies."""

from __future__ import annotations

import fcntl
import os
import time
from pathlib import Path

import msgspec


class Owner(msgspec.Struct, frozen=True, kw_only=True):
    """Who holds the lock; written into the lock file for whoever is refused."""

    pid: int
    host: str
    port: int
    started: float


class HomeInUseError(RuntimeError):
    """Another `program` runs on this state folder. `owner` is None when it has not written its name yet."""

    def __init__(self, path: Path, owner: Owner | None, program: str) -> None:
        self.owner = owner
        folder = path.parent
        if owner is None:
            super().__init__(f"Another `{program}` is starting with the state folder {folder}.")
            return
        since = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(owner.started))
        super().__init__(
            f"Another `{program}` is already using the state folder {folder}: process {owner.pid}, "
            f"http://{owner.host}:{owner.port}, since {since}. Stop it first (kill {owner.pid}), "
            f"or set INGOT_HOME to another folder."
        )


class OwnerLock:
    """Holds `path` until `release()` or the end of this process. The file stays: removing it would let two in. The name
    in it stays where a process ended without releasing it."""

    def __init__(self, path: Path, program: str = "ingot serve") -> None:
        """Raises HomeInUseError."""
        self._handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        if not self._taken():
            os.close(self._handle)
            raise HomeInUseError(path, read_owner(path), program)
        os.ftruncate(self._handle, 0)

    def _taken(self) -> bool:
        """Tried more than once: `is_held` holds it too, for a moment."""
        for pause_s in (0.02, 0.05, 0.0):
            try:
                fcntl.flock(self._handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                time.sleep(pause_s)
            else:
                return True
        return False

    def sign(self, owner: Owner) -> None:
        os.pwrite(self._handle, msgspec.json.encode(owner), 0)

    def release(self) -> None:
        os.ftruncate(self._handle, 0)
        os.close(self._handle)


def is_held(path: Path) -> bool:
    """Whether a process holds the lock. A shared one is asked for, and let go of at once where it is had."""
    try:
        with path.open("rb") as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except FileNotFoundError:
        return False
    return False


def may_be_held(path: Path) -> bool:
    """The same; True where this user may not look."""
    try:
        return is_held(path)
    except PermissionError:
        return True


def read_owner(path: Path) -> Owner | None:
    """The name in the lock file; None when nobody has written one."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=Owner)
    except (FileNotFoundError, msgspec.DecodeError):
        return None
