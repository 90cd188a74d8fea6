"""Explains why an import failed: what happened, what to do, and a command if there is one."""

from __future__ import annotations

import errno
import os
import shutil
from dataclasses import dataclass
from pathlib import Path

import msgspec

from appliance.bundle.errors import BundleError
from appliance.bundle.telling import in_sentences
from console.formats import gib
from console.models.leftovers import discard, leftovers


class Trouble(msgspec.Struct, frozen=True, omit_defaults=True):
    """`command` is for a terminal on the machine itself, in the folder of compose.yaml if containers are used. `code`
    says the kind of problem."""

    text: str
    remedy: str = ""
    command: str = ""
    code: str = ""


GONE = frozenset({errno.ENODEV, errno.ENXIO, errno.ENOENT, errno.ESTALE, errno.ENOMEDIUM, errno.ENOTCONN})
UNREADABLE = frozenset({errno.EIO, errno.EREMOTEIO, errno.EUCLEAN, errno.EBADMSG})
FULL = frozenset({errno.ENOSPC, errno.EDQUOT})
LOCKED = frozenset({errno.EROFS, errno.EACCES, errno.EPERM})


@dataclass(frozen=True)
class Place:
    """The models folder as this process sees it; in containers it is mounted from the host, under another path."""

    models: Path
    in_container: bool

    @property
    def free(self) -> int:
        """Bytes that may be written; 0 if the folder is missing."""
        try:
            return shutil.disk_usage(self.models).free
        except OSError:
            return 0

    def trouble(self) -> Trouble | None:
        """Why the folder cannot be written; None if it can."""
        if not os.path.isdir(self.models):
            return Trouble(f"The models folder {self.models} does not exist.", "Create it:", f"mkdir -p {self.models}")
        if os.access(self.models, os.W_OK | os.X_OK):
            return None
        if os.statvfs(self.models).f_flag & os.ST_RDONLY:
            if self.in_container:
                return Trouble(
                    f"The models folder {self.models} is mounted read-only for the console.",
                    "Remove `read_only` from the console's models mount in compose.yaml (keep the engine's), and check "
                    "that the host's disk is not mounted read-only. Then recreate the container:",
                    "docker compose up -d console",
                )
            return Trouble(
                f"The models folder {self.models} is on a disk that is mounted read-only.",
                "Remount it writable, or set INGOT_MODELS to a folder on another disk and restart the console.",
                f"sudo mount -o remount,rw {_mount_point(self.models)}",
            )
        owner = self.models.stat()
        text = (
            f"The console runs as user {os.geteuid()} and cannot write to {self.models}, which belongs to user "
            f"{owner.st_uid} with mode {owner.st_mode & 0o777:o}."
        )
        if self.in_container:
            command = (
                "docker compose run --rm --no-deps --user 0 --cap-add CHOWN --entrypoint chown console "
                f"{os.geteuid()}:{os.getegid()} {self.models}"
            )
            return Trouble(text, "Make it the owner; on the host, in the folder of compose.yaml:", command)
        return Trouble(text, "Make it the owner:", f"sudo chown {os.geteuid()}:{os.getegid()} {self.models}")


def trouble(error: BundleError | OSError, source: Path, place: Place, names: tuple[str, ...], needed: int) -> Trouble:
    """What `error` means for an import of the models `names` from `source`, of `needed` bytes. If the disk is full,
    the partial copy is deleted."""
    if isinstance(error, BundleError) and isinstance(error.__cause__, OSError) and error.__cause__.errno in FULL:
        error = error.__cause__
    if isinstance(error, BundleError):
        return Trouble(in_sentences(str(error)), _kept(place, names), code=error.code)
    number = error.errno or 0
    why = os.strerror(number) if number else str(error)
    if number in FULL:
        discard(place.models, names)
        return Trouble(
            f"The disk of {place.models} is full. The import needs {gib(needed)}; {gib(place.free)} is free, now that "
            "the partial copy has been deleted.",
            "Delete a model that is no longer used, or move the folder to a larger disk. Then import again.",
            code="disk-full",
        )
    if (is_locked := place.trouble()) is not None:
        return is_locked
    kept = _kept(place, names)
    if number == errno.ETIMEDOUT:
        return Trouble(
            f"{source.name} stopped responding, and the import could not be cancelled cleanly.",
            f"Unplug the USB drive. If the next import reports that another is running, restart the console. {kept}",
            code="not-responding",
        )
    name = source.name
    if number in GONE or not source.exists():
        text = f"{name} disappeared while it was being read: the USB drive was unplugged or unmounted."
        return Trouble(text, f"Plug it in again, wait until it is listed below, then import again. {kept}", code="gone")
    if number in UNREADABLE:
        text = f"{name} could not be read completely: the USB drive reports {why.lower()}."
        return Trouble(text, f"Copy the file to another USB drive and try again. {kept}", code="unreadable")
    if number in LOCKED:
        return Trouble(
            f"{error.filename or name} cannot be read: {why.lower()}.",
            f"Mount the USB drive so that user {os.geteuid()} can read it (for FAT and exFAT, use the mount option "
            f"uid={os.geteuid()}). {kept}",
            code="no-access",
        )
    where = f" ({error.filename})" if error.filename else ""
    return Trouble(f"The import failed: {why.lower()}{where}.", f"Fix that and try again. {kept}", code="failed")


def _kept(place: Place, names: tuple[str, ...]) -> str:
    """What was kept of a failed import."""
    if any(leftover.name in names for leftover in leftovers(place.models)):
        return "The files copied so far are kept, hidden: importing the same bundle again resumes from there."
    return "No partial copy was kept."


def _mount_point(path: Path) -> str:
    """The mount point of the file system that contains `path`; the table writes a space as \\040."""
    rows = Path("/proc/self/mountinfo").read_bytes().splitlines()
    points = (row.split()[4].decode("unicode_escape") for row in rows)
    return max((point for point in points if path.resolve().is_relative_to(point)), key=len, default="/")
