"""The folders in which an engine that compiles keeps the result can be written by this user, and belong to it."""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterator
from pathlib import Path

from appliance.preflight.cache_folders import Place, places
from appliance.preflight.subject import Subject
from appliance.preflight.surroundings import can_write, nearest_existing
from appliance.protocol import Finding, Fix, Severity

# Inductor asks for the user's name to make its folder; any of these variables answers in place of /etc/passwd.
NAMES_OF_USER = ("LOGNAME", "USER", "LNAME", "USERNAME")


def run(subject: Subject) -> Iterator[Finding]:
    for place in places(subject):
        here = subject.here.at(place.path)
        if not can_write(here):
            yield _unwritable(subject, place, here)
        elif (owner := _foreign_owner(subject, here)) is not None:
            yield _foreign(subject, place, owner)
    environ = subject.engine_environ
    nameless = not subject.here.user_is_known and not any(environ.get(name) for name in NAMES_OF_USER)
    if nameless and subject.engine == "vllm" and subject.compiles and not environ.get("TORCHINDUCTOR_CACHE_DIR"):
        yield Finding(
            id="user-without-name",
            severity=Severity.ERROR,
            message=f"User {subject.here.uid} has no name in /etc/passwd, which torch.compile asks for its folder: "
            "KeyError, uid not found.",
            field="TORCHINDUCTOR_CACHE_DIR",
            fix=Fix(
                text="Give the process a name, or torch.compile a folder.",
                command=f"export USER=ingot TORCHINDUCTOR_CACHE_DIR={_ours(subject, 'inductor')}",
            ),
        )


def _unwritable(subject: Subject, place: Place, here: Path) -> Finding:
    nearest = nearest_existing(here)
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
        fix=Fix(
            text=f"Set {row.variable} to a folder on a volume that this user may write.",
            command=f"export {row.variable}={_ours(subject, row.variable.partition('_')[0].lower())}",
        ),
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
