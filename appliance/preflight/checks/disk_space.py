"""The state folder and the compile caches are writable and have free space."""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterator
from pathlib import Path

from appliance.preflight.cache_folders import places
from appliance.preflight.subject import Subject
from appliance.preflight.surroundings import can_write, nearest_existing
from appliance.profile.sizes import size_text
from appliance.protocol import Finding, Fix, Severity

MIB = 1 << 20
# Below LEAST a launch could not write its events and log, and nothing may be lost.
LEAST, COMFORTABLE = 16 * MIB, 512 * MIB
FILES = 1000


def run(subject: Subject) -> Iterator[Finding]:
    home = subject.context.home
    root = home.root
    parts = [folder for folder in (home.active, home.launches, home.selftest) if os.path.lexists(folder)]
    written = (home.launches, home.selftest) if home.is_of_another_user else (root, *parts)
    if root in written and not can_write(root):
        yield _unwritable(subject, root)
    elif wrong := [folder for folder in parts if not folder.is_dir()]:
        yield from map(_not_a_folder, wrong)
    elif closed := [folder for folder in written if not can_write(folder)]:
        yield _unwritable(subject, closed[0])
    else:
        yield from _room("state-folder-full", "the state folder", root, "A launch log", Severity.ERROR)
    for place in places(subject):
        folder = subject.here.at(place.path)
        if can_write(folder):
            yield from _room("cache-folder-full", place.row.what, folder, "Compiled code", Severity.WARNING)


def _not_a_folder(place: Path) -> Finding:
    aside = place.with_name(f"{place.name}.aside")
    return Finding(
        id="state-folder-damaged",
        severity=Severity.ERROR,
        message=f"{place} is not a folder, and Ingot needs a folder of that name.",
        field="INGOT_HOME",
        value=str(place),
        fix=Fix(text="Move it aside. Ingot creates the folder.",
                command=f"mv {shlex.quote(str(place))} {shlex.quote(str(aside))}"),
    )  # fmt: skip


def _unwritable(subject: Subject, root: Path) -> Finding:
    mount = subject.here.mount_of(root)
    read_only = mount is not None and "ro" in mount.options
    place = mount.place if mount else root
    why = f"the file system at {place} is read-only" if read_only else f"user {subject.here.uid} has no write access"
    return Finding(
        id="state-folder-unwritable",
        severity=Severity.ERROR,
        message=f"The state folder {root} cannot be written: {why}.",
        field="INGOT_HOME",
        value=str(root),
        fix=Fix(text="Check `dmesg`: a failing disk is remounted read-only. Otherwise mount it writable.",
                command=f"mount -o remount,rw {shlex.quote(str(place))}")
        if read_only
        else Fix(text="Make this user its owner, or set INGOT_HOME to a writable folder.",
                 command=f"chown -R {subject.here.uid} {shlex.quote(str(root))}"),
    )  # fmt: skip


def _room(id: str, what: str, folder: Path, for_what: str, if_none: Severity) -> Iterator[Finding]:
    place = nearest_existing(folder)
    try:
        status = os.statvfs(place) if place else None
    except OSError:
        status = None
    if status is None or not status.f_blocks:  # some network file systems report nothing
        return
    free = status.f_bavail * status.f_frsize
    few_files = status.f_files > 0 and status.f_favail < FILES
    if free >= COMFORTABLE and not few_files:
        return
    left = f"{status.f_favail:,} files can still be created" if few_files else f"{size_text(free)} is free"
    yield Finding(
        id=id,
        severity=if_none if free < LEAST else Severity.WARNING,
        message=f"Only {left} for {what} ({folder}). {for_what} may not fit.",
        field=str(folder),
        value=free,
        fix=Fix(
            text="Free some space. Old launches and backups can be deleted on their pages.",
            look=f"du -xhd1 {shlex.quote(str(place))}",
        ),
        transient=True,
    )
