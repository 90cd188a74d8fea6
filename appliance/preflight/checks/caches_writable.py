"""The cache folders of an engine that compiles are writable by this user, hold no other user's files, and have paths
that its compilers can be given."""

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
            if nearest not in told or not subject.traits.caches_in_home:  # then each has its own fix
                yield _unwritable(subject, place, nearest)
            told.add(nearest)
        elif (owner := _foreign_owner(subject, here)) is not None:
            yield _foreign(subject, place, owner)
    if told or not subject.traits.torch_compile:
        return
    for place in places(subject):
        if not _is_one_word(place.path):
            yield _several_words(subject, place)
            return  # all lie in one folder


def _is_one_word(path: Path) -> bool:
    try:
        return shlex.split(str(path)) == [str(path)]
    except ValueError:  # a quote without its end
        return False


def _several_words(subject: Subject, place: Place) -> Finding:
    """torch.compile puts its C++ compiler's command together as text, and splits that as a shell would. On a GPU not
    every model has code for it."""
    return Finding(
        id="cache-path-splits",
        severity=Severity.ERROR if subject.device.gpu is None else Severity.WARNING,
        message=f"{place.row.what} are written to {str(place.path)!r}; torch.compile cannot compile C++ where the path "
        "has blanks, quotes or backslashes.",
        field=place.row.variable,
        value=str(place.path),
        fix=Fix(text="Set INGOT_HOME to a folder whose path has none, such as /srv/ingot."),
    )


def _unwritable(subject: Subject, place: Place, nearest: Path | None) -> Finding:
    row = place.row
    return Finding(
        id="cache-unwritable",
        severity=Severity.ERROR if row.needed else Severity.WARNING,
        message=f"{row.what} are written to {place.path}, but user {subject.here.uid} has no write access there.",
        field=row.variable,
        value=subject.engine_environ.get(row.variable),
        evidence=(
            f"{nearest} belongs to user {_owner(nearest)}" if nearest else f"{place.path} cannot be inspected",
            f"HOME is {subject.engine_environ.get('HOME', 'not set')}",
        ),
        fix=_way_out(subject, row, nearest),
    )


def _way_out(subject: Subject, row: CacheFolder, nearest: Path | None) -> Fix:
    if subject.traits.caches_in_home:
        return Fix(
            text="Make the engine's user the owner of that folder.",
            command=f"chown -R {subject.here.uid} {shlex.quote(str(nearest))}",
        )
    return Fix(
        text=f"Set {row.variable} to a folder this user can write, on a volume.",
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
        message=f"{place.path} contains files of user {owner} that user {subject.here.uid} cannot replace.",
        field=place.row.variable,
        value=str(place.path),
        fix=Fix(
            text=f"Set {place.row.variable} to another folder, or make this user the owner of the files.",
            command=f"chown -R {subject.here.uid} {shlex.quote(str(place.path))}",
        ),
    )


def _owner(path: Path) -> str:
    try:
        return str(path.stat().st_uid)
    except OSError:
        return "an unknown owner"
