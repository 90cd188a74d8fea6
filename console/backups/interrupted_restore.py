"""Checks for an interrupted restore. It runs at every start, before the engine's, so it imports nothing else until
there is one."""

from __future__ import annotations

from contextlib import suppress
from itertools import chain

from appliance.home import Home
from appliance.home_lock import HomeInUseError, OwnerLock

PENDING = "restore-pending"
STAGED = ".restore-staged-"
DONE = ".restore-done-"


def finish(home: Home) -> bool:
    """Finish a restore that an earlier process committed, and remove what was only staged. Returns whether the state
    changed. The caller holds the console's lock.

    Raises BackupError if the disk prevents it."""
    if not any(chain(home.root.glob(PENDING), home.root.glob(f"{STAGED}*"), home.root.glob(f"{DONE}*"))):
        return False
    from console.backups import restore_steps

    return restore_steps.recover(home) is not None


def finish_if_alone(home: Home) -> None:
    """The same for commands that open the database without being the console; a running console does it itself."""
    if not (home.root / PENDING).is_dir():
        return
    with suppress(HomeInUseError):
        lock = OwnerLock(home.console_lock, "ingot")
        try:
            finish(home)
        finally:
            lock.release()
