"""Whether a restore was cut off. It is asked at every start, before the engine's, so nothing is imported for it until
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
    """Finish a restore that a process that is gone had decided, and clear away what another had only prepared. The
    answer is whether the state is another one now. The caller holds the console's lock.

    Raises BackupError where the disk does not let it."""
    if not any(chain(home.root.glob(PENDING), home.root.glob(f"{STAGED}*"), home.root.glob(f"{DONE}*"))):
        return False
    from console.backups import plan

    return plan.recover(home) is not None


def finish_if_alone(home: Home) -> None:
    """The same for commands that open the database without being the console; a console that runs sees to it itself."""
    if not (home.root / PENDING).is_dir():
        return
    with suppress(HomeInUseError):
        lock = OwnerLock(home.console_lock, "ingot")
        try:
            finish(home)
        finally:
            lock.release()
