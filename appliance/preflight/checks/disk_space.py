"""The state folder can be written and has room for logs, and so have the folders in which an engine compiles."""

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
# A launch that cannot write its events and its log cannot be told of: nothing may be lost.
LEAST, COMFORTABLE = 16 * MIB, 512 * MIB
FILES = 1000


def run(subject: Subject) -> Iterator[Finding]:
    home = subject.context.home
    root = home.root
    parts = [folder for folder in (home.active, home.launches, home.selftest) if os.path.lexists(folder)]
    if not can_write(root):
        yield _unwritable(subject, root)
    elif wrong := [folder for folder in parts if not folder.is_dir()]:
        yield from map(_not_a_folder, wrong)
    elif closed := [folder for folder in parts if not can_write(folder)]:
        yield _unwritable(subject, closed[0])
    else:
        yield from _room("state-folder-full", "the state folder", root, "the log of a launch", Severity.ERROR)
    for place in places(subject):
        folder = subject.here.at(place.path)
        if can_write(folder):
            yield from _room("cache-folder-full", place.row.what, folder, "what is compiled", Severity.WARNING)


def _not_a_folder(place: Path) -> Finding:
    aside = place.with_name(f"{place.name}.aside")
    return Finding(
        id="state-folder-damaged",
        severity=Severity.ERROR,
        message=f"{place} is no folder, and Ingot keeps its files in a folder of that name.",
        field="INGOT_HOME",
        value=str(place),
        fix=Fix(text="Put it aside; Ingot makes the folder anew.",
                command=f"mv {shlex.quote(str(place))} {shlex.quote(str(aside))}"),
    )  # fmt: skip


def _unwritable(subject: Subject, root: Path) -> Finding:
    mount = subject.here.mount_of(root)
    read_only = mount is not None and "ro" in mount.options
    place = mount.place if mount else root
    why = f"the file system at {place} is read-only" if read_only else f"user {subject.here.uid} may not write it"
    return Finding(
        id="state-folder-unwritable",
        severity=Severity.ERROR,
        message=f"The state folder {root} cannot be written: {why}.",
        field="INGOT_HOME",
        value=str(root),
        fix=Fix(text="A disk that failed is mounted read-only: look at `dmesg`. Otherwise mount it writable.",
                command=f"mount -o remount,rw {shlex.quote(str(place))}")
        if read_only
        else Fix(text="Give it to this user, or point INGOT_HOME at a folder that is.",
                 command=f"chown -R {subject.here.uid} {shlex.quote(str(root))}"),
    )  # fmt: skip


def _room(id: str, what: str, folder: Path, for_what: str, if_none: Severity) -> Iterator[Finding]:
    place = nearest_existing(folder)
    try:
        status = os.statvfs(place) if place else None
    except OSError:
        status = None
    if status is None or not status.f_blocks:  # some network file systems tell nothing
        return
    free = status.f_bavail * status.f_frsize
    few_files = status.f_files > 0 and status.f_favail < FILES
    if free >= COMFORTABLE and not few_files:
        return
    left = f"{status.f_favail} files can still be made" if few_files else f"{size_text(free)} are free"
    yield Finding(
        id=id,
        severity=if_none if free < LEAST else Severity.WARNING,
        message=f"{left[:1].upper() + left[1:]} for {what} ({folder}), which is little for {for_what}.",
        field=str(folder),
        value=free,
        fix=Fix(
            text="Make room: old launches and backups can be deleted on their pages.",
            command=f"du -xhd1 {shlex.quote(str(place))}",
        ),
    )
