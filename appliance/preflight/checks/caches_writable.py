"""The folders in which an engine that compiles keeps the result can be written by this user, and belong to it."""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterator
from pathlib import Path

from appliance.preflight.cache_folders import CacheFolder, Place, places
from appliance.preflight.subject import Subject
from appliance.preflight.surroundings import can_write, nearest_existing
from appliance.protocol import Finding, Fix, Severity


def run(subject: Subject) -> Iterator[Finding]:
    told: set[Path | None] = set()
    for place in places(subject):
        here = subject.here.at(place.path)
        if not can_write(here):
            nearest = nearest_existing(here)
            if nearest not in told or subject.engine == "native":  # each of the native engine's has its own way out
                yield _unwritable(subject, place, nearest)
            told.add(nearest)
        elif (owner := _foreign_owner(subject, here)) is not None:
            yield _foreign(subject, place, owner)


def _unwritable(subject: Subject, place: Place, nearest: Path | None) -> Finding:
    row = place.row
    return Finding(
        id="cache-unwritable",
        severity=Severity.ERROR if row.needed else Severity.WARNING,
        message=f"{row.what} go to {place.path}, where user {subject.here.uid} may not write.",
        field=row.variable,
        value=subject.engine_environ.get(row.variable),
        evidence=(
            f"{nearest} belongs to user {_owner(nearest)}" if nearest else f"{place.path} cannot be looked at",
            f"HOME is {subject.engine_environ.get('HOME', 'not set')}",
        ),
        fix=_way_out(subject, row, nearest),
    )


def _way_out(subject: Subject, row: CacheFolder, nearest: Path | None) -> Fix:
    if subject.engine == "vllm":  # its caches lie in the state folder
        return Fix(
            text="Give that folder to the user of the engine.",
            command=f"chown -R {subject.here.uid} {shlex.quote(str(nearest))}",
        )
    return Fix(
        text=f"Set {row.variable} to a folder on a volume that this user may write.",
        command=f"export {row.variable}={_ours(subject, row.variable.partition('_')[0].lower())}",
    )


def _ours(subject: Subject, name: str) -> str:
    return shlex.quote(str(subject.context.home.root / "caches" / name))


def _foreign_owner(subject: Subject, folder: Path) -> int | None:
    """Whose the entries are, where they are another user's and this one may not write them: root may."""
    if subject.here.uid == 0:
        return None
    try:
        with os.scandir(folder) as entries:
            for _, entry in zip(range(256), entries, strict=False):
                status = entry.stat(follow_symlinks=False)
                if status.st_uid != subject.here.uid and not os.access(entry.path, os.W_OK):
                    return status.st_uid
    except OSError:
        return None
    return None


def _foreign(subject: Subject, place: Place, owner: int) -> Finding:
    return Finding(
        id="cache-of-another-user",
        severity=Severity.WARNING,
        message=f"{place.path} holds entries of user {owner}, which user {subject.here.uid} may not replace.",
        field=place.row.variable,
        value=str(place.path),
        fix=Fix(
            text=f"Use a folder of its own with {place.row.variable}, or give the entries to this user.",
            command=f"chown -R {subject.here.uid} {shlex.quote(str(place.path))}",
        ),
    )


def _owner(path: Path) -> str:
    try:
        return str(path.stat().st_uid)
    except OSError:
        return "nobody that can be told"
