"""The state folder (`INGOT_HOME`): where everything lives that outlasts a process; how files are written and read."""

from __future__ import annotations

import calendar
import contextlib
import errno
import os
import re
import stat
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

CHECKOUT = Path(__file__).absolute().parents[1]
"""The folder that this code runs from. In a checkout, `make run` keeps its state in `.ingot` there."""


@dataclass(frozen=True)
class Home:
    """Paths inside the state folder. `models` may lie elsewhere (`INGOT_MODELS`), for example on a read-only mount."""

    root: Path
    models: Path

    @classmethod
    def at(cls, root: Path | str, models: Path | str | None = None) -> Home:
        root = Path(root).expanduser().absolute()
        return cls(root, Path(models).expanduser().absolute() if models else root / "models")

    @classmethod
    def from_environment(cls, environ: Mapping[str, str] = os.environ) -> Home:
        """`INGOT_HOME`, or else the first of `usual_folders`."""
        return cls.at(environ.get("INGOT_HOME") or usual_folders(environ)[0], environ.get("INGOT_MODELS"))

    @property
    def database(self) -> Path:
        return self.root / "ingot.db"

    @property
    def active(self) -> Path:
        return self.root / "active"

    @property
    def active_profile(self) -> Path:
        return self.active / "profile.yaml"

    @property
    def api_keys(self) -> Path:
        return self.active / "keys.json"

    @property
    def startable(self) -> Path:
        """The profiles that requests may start (`appliance.profile.startable`)."""
        return self.active / "on-request.json"

    @property
    def console_token(self) -> Path:
        """Opens the console to programs of its user. The engine cannot read it where it has a user of its own; what it
        gets to see is made from it (`appliance.front_door_token`)."""
        return self.root / "console-token"

    @property
    def front_door_digest(self) -> Path:
        """By this the front door knows the console."""
        return self.active / "console-token.sha256"

    @property
    def launches(self) -> Path:
        return self.root / "launches"

    @property
    def lock(self) -> Path:
        """Held by the one `ingot serve` that runs on this folder; its content says which."""
        return self.root / "serve.lock"

    @property
    def console_lock(self) -> Path:
        """The same for the one console."""
        return self.root / "console.lock"

    @property
    def engine_stopped(self) -> Path:
        """There while the engine is stopped on purpose: a console that starts leaves it stopped."""
        return self.root / "engine-stopped"

    @property
    def engine_machine(self) -> Path:
        """The front door's last description of its machine, for when it is stopped and the console is elsewhere."""
        return self.root / "engine-machine.json"

    @property
    def cache_packs(self) -> Path:
        """What vLLM compiled elsewhere: a folder a pack."""
        return self.root / "cache-packs"

    @property
    def selftest(self) -> Path:
        """What the first good launch of each checkpoint answered, by digest."""
        return self.root / "selftest"

    def launch(self, launch_id: str) -> Path:
        return self.launches / launch_id

    def new_launch_id(self, now: float | None = None) -> str:
        """Ids sort in the order in which they were made, also after the clock was turned back: they are of the time, or
        of the moment after the newest launch's that is there."""
        ticks = int((time.time() if now is None else now) * _TICKS)
        with contextlib.suppress(FileNotFoundError):
            there = (_ticks(entry.name) for entry in os.scandir(self.launches))
            ticks = max((ticks, *(known + 1 for known in there if known is not None)))
        return launch_id_of(ticks)

    def create(self) -> Home:
        """Make the folders that are ours to make; readable by this user only, since they hold keys and logs. So are the
        files that this process writes from here on, wherever the folder lies. An engine in a state folder of another
        user, the console's, writes for their group as well (`console.engine_control.shared_state`)."""
        os.umask(0o007 if self.is_of_another_user else 0o077)
        for folder in (self.root, self.active, self.launches, self.selftest):
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        if self.models.is_relative_to(self.root):
            self.models.mkdir(mode=0o755, parents=True, exist_ok=True)
        return self

    @property
    def is_of_another_user(self) -> bool:
        """As the console's is for the engine in containers."""
        try:
            return self.root.stat().st_uid != os.geteuid()
        except (FileNotFoundError, NotADirectoryError, PermissionError):
            return False


def usual_folders(environ: Mapping[str, str] = os.environ) -> list[Path]:
    """Where state is kept unless `INGOT_HOME` names a folder: `.ingot` of the checkout that this code runs from, if it
    is there; then `$XDG_DATA_HOME/ingot` or `~/.local/share/ingot`."""
    data = Path(environ.get("XDG_DATA_HOME") or "~/.local/share").expanduser()
    of_checkout = CHECKOUT / ".ingot"
    return [*([of_checkout] if of_checkout.is_dir() else []), data / "ingot"]


LAUNCH_ID = re.compile(r"(\d{8}-\d{6})-([0-9a-f]{4})")
_TICKS = 65536
_SYNCED_AT_ONCE = 16


def launch_id_of(ticks: int) -> str:
    """`20261120-095145-3f2a`, of 65536ths of a second since the epoch (UTC)."""
    second, tick = divmod(ticks, _TICKS)
    return time.strftime("%Y%m%d-%H%M%S", time.gmtime(second)) + f"-{tick:04x}"


def _ticks(launch_id: str) -> int | None:
    """None for a name that is not a launch's, or has no valid date."""
    found = LAUNCH_ID.fullmatch(launch_id)
    if found is None:
        return None
    try:
        return calendar.timegm(time.strptime(found[1], "%Y%m%d-%H%M%S")) * _TICKS + int(found[2], 16)
    except ValueError:
        return None


def read_file(path: Path, max_bytes: int) -> bytes:
    """The content of a regular file. Raises OSError for anything else of that name, since a pipe would be waited for
    and a device may never end; and for more than `max_bytes`."""
    if not stat.S_ISREG(path.stat().st_mode):
        raise OSError(errno.EINVAL, "it is not a file", str(path))
    with path.open("rb") as file:
        raw = file.read(max_bytes + 1)
    if len(raw) > max_bytes:
        raise OSError(errno.EFBIG, f"it has more than {max_bytes} bytes, too many for such a file", str(path))
    return raw


def sync_folder(folder: Path) -> None:
    """The names in a folder outlast a power cut from here on."""
    _sync(folder, os.O_DIRECTORY)


def sync_below(folder: Path) -> None:
    """All files below a folder, and their names, outlast a power cut from here on. Many are synced at once: one after
    the other, each would wait for the disk."""
    from concurrent.futures import ThreadPoolExecutor  # late: nearly everything imports this module

    with ThreadPoolExecutor(_SYNCED_AT_ONCE) as threads:
        for _ in threads.map(_sync, (folder, *folder.rglob("*"))):
            pass


def _sync(path: Path, flags: int = 0) -> None:
    handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC | flags)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def write_atomically(path: Path, data: str | bytes, mode: int | None = None) -> None:
    """Replace `path` as a whole: a reader sees the old content or the new, never a part, whatever is switched off.
    Without `mode`, others of the group may read and write the file where they may do so with its folder."""
    raw = data.encode() if isinstance(data, str) else data
    if mode is None:
        mode = 0o600 | path.parent.stat().st_mode & 0o060
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(raw)
            file.flush()
            os.fsync(file.fileno())
        os.chmod(temporary, mode)
        os.replace(temporary, path)
    except BaseException:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(temporary)
        raise
