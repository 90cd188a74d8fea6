"""What stopped an import, in words: what happened, what to do, and the command for it where there is one."""

from __future__ import annotations

import errno
import os
import shutil
from dataclasses import dataclass
from pathlib import Path

import msgspec

from appliance.bundle.errors import BundleError
from console.formats import gib
from console.models.leftovers import discard, leftovers


class Trouble(msgspec.Struct, frozen=True, omit_defaults=True):
    """`command` is for a terminal on the machine itself, in the folder of compose.yaml where containers run."""

    text: str
    remedy: str = ""
    command: str = ""


GONE = frozenset({errno.ENODEV, errno.ENXIO, errno.ENOENT, errno.ESTALE, errno.ENOMEDIUM, errno.ENOTCONN})
UNREADABLE = frozenset({errno.EIO, errno.EREMOTEIO, errno.EUCLEAN, errno.EBADMSG})
FULL = frozenset({errno.ENOSPC, errno.EDQUOT})
LOCKED = frozenset({errno.EROFS, errno.EACCES, errno.EPERM})


@dataclass(frozen=True)
class Place:
    """The models folder as this process may use it; in containers it is somebody else's folder, under another path."""

    models: Path
    in_container: bool

    @property
    def free(self) -> int:
        """Bytes that may be written; 0 where the folder is missing."""
        try:
            return shutil.disk_usage(self.models).free
        except OSError:
            return 0

    def trouble(self) -> Trouble | None:
        """Why nothing can be written there, if so."""
        if not os.path.isdir(self.models):
            return Trouble(f"The models folder {self.models} is not there.", "Make it:", f"mkdir -p {self.models}")
        if os.access(self.models, os.W_OK | os.X_OK):
            return None
        if os.statvfs(self.models).f_flag & os.ST_RDONLY:
            if self.in_container:
                return Trouble(
                    f"The models folder {self.models} is mounted read-only for the console.",
                    "Take `read_only` away from the console's models mount in compose.yaml (the engine's stays), and "
                    "see that the host's disk itself is not mounted read-only. Then make the container anew:",
                    "docker compose up -d console",
                )
            return Trouble(
                f"The models folder {self.models} is on a disk that is mounted read-only.",
                "Mount it for writing, or start the console with INGOT_MODELS naming a folder on another disk.",
                f"sudo mount -o remount,rw {_mount_point(self.models)}",
            )
        owner = self.models.stat()
        text = (
            f"The console may not write to {self.models}: it runs as user {os.geteuid()}, and the folder belongs to "
            f"user {owner.st_uid} with mode {owner.st_mode & 0o777:o}."
        )
        if self.in_container:
            command = (
                "docker compose run --rm --no-deps --user 0 --cap-add CHOWN --entrypoint chown console "
                f"{os.geteuid()}:{os.getegid()} {self.models}"
            )
            return Trouble(text, "On the host, in the folder of compose.yaml, give it the folder:", command)
        return Trouble(text, "Give it the folder:", f"sudo chown {os.geteuid()}:{os.getegid()} {self.models}")


def trouble(error: BundleError | OSError, source: Path, place: Place, names: tuple[str, ...], needed: int) -> Trouble:
    """What `error` means for an import of the models `names` from `source`, of `needed` bytes. A disk that it has
    filled is given its room back."""
    if isinstance(error, BundleError) and isinstance(error.__cause__, OSError) and error.__cause__.errno in FULL:
        error = error.__cause__
    if isinstance(error, BundleError):
        return Trouble(_sentence(str(error)), _kept(place, names))
    number = error.errno or 0
    why = os.strerror(number) if number else str(error)
    if number in FULL:
        discard(place.models, names)
        return Trouble(
            f"The disk of {place.models} is full: the import needs {gib(needed)}, and {gib(place.free)} are free now "
            "that what was copied is gone again.",
            "Delete a model that is not used any more, or give the folder a larger disk; then import again.",
        )
    if (is_locked := place.trouble()) is not None:
        return is_locked
    kept = _kept(place, names)
    if number == errno.ETIMEDOUT:
        return Trouble(
            f"{source.name} gave nothing any more, and the import could not be called off in order.",
            f"Unplug the stick. If the next import says that another is running, start the console again. {kept}",
        )
    name = source.name
    if number in GONE or not source.exists():
        text = f"{name} went away while it was read: the stick was pulled, or its mount was taken away."
        return Trouble(text, f"Plug it in again and wait until it is listed below, then import again. {kept}")
    if number in UNREADABLE:
        text = f"{name} could not be read to its end: the stick reports {why.lower()}."
        return Trouble(text, f"Copy the file to another stick and try again. {kept}")
    if number in LOCKED:
        return Trouble(
            f"{error.filename or name} may not be read: {why.lower()}.",
            f"Mount the stick so that user {os.geteuid()} may read it (for FAT and exFAT with the mount option "
            f"uid={os.geteuid()}). {kept}",
        )
    where = f" ({error.filename})" if error.filename else ""
    return Trouble(f"It ended: {why.lower()}{where}.", f"See to that and try again. {kept}")


def _kept(place: Place, names: tuple[str, ...]) -> str:
    """What is there of it, since nothing of it is a model."""
    if any(leftover.name in names for leftover in leftovers(place.models)):
        return "What was copied so far stays hidden and is no model: the next import of the same goes on from there."
    return "Nothing half copied was kept."


def _sentence(text: str) -> str:
    """With a capital, unless a file's name is its first word, and a full stop."""
    first = text.split(" ", 1)[0]
    return f"{text[:1].upper() + text[1:] if first.isalpha() else text}".rstrip(".") + "."


def _mount_point(path: Path) -> str:
    """Where the file system that holds `path` is mounted; in the table a space is written as \\040."""
    rows = Path("/proc/self/mountinfo").read_bytes().splitlines()
    points = (row.split()[4].decode("unicode_escape") for row in rows)
    return max((point for point in points if path.resolve().is_relative_to(point)), key=len, default="/")
