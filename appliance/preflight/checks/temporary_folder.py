"""The temporary folder is writable, has a path short enough for sockets, and allows execution."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from appliance.preflight.subject import Subject
from appliance.preflight.surroundings import can_write
from appliance.protocol import Finding, Fix, Severity

NAMED_BY = ("TMPDIR", "TEMP", "TMP")
ELSE = ("/tmp", "/var/tmp", "/usr/tmp")
# A socket's path has at most 107 bytes; the engines add a folder and a name of up to 40.
LONGEST_SOCKET, NAME_OF_SOCKET = 107, 40


def run(subject: Subject) -> Iterator[Finding]:
    environ = subject.engine_environ
    named = [(name, environ[name]) for name in NAMED_BY if environ.get(name, "").startswith("/")]
    folders = [*named, *(("TMPDIR", place) for place in ELSE)]
    usable = [(name, place) for name, place in folders if _usable(subject, place)]
    if not usable:
        yield _finding(
            "temporary-folder-missing",
            Severity.ERROR,
            f"User {subject.here.uid} can write none of the folders for temporary files: "
            f"{', '.join(dict.fromkeys(place for _, place in folders))}.",
            folders[0][1],
            "Mount one: `tmpfs: /tmp` in compose.yaml, `--tmpfs /tmp`.",
            "mkdir -p -m 1777 /tmp",
        )
        return
    if named and usable[0] != named[0]:
        yield _finding(
            "temporary-folder-unusable",
            Severity.WARNING,
            f"{named[0][0]} is {named[0][1]}, which user {subject.here.uid} cannot write. {usable[0][1]} is used "
            "instead.",
            named[0][1],
            "Create it, or unset the variable.",
            f"unset {named[0][0]}",
        )
    place = usable[0][1]
    if len(place.encode(errors="surrogateescape")) + NAME_OF_SOCKET > LONGEST_SOCKET:
        yield _finding(
            "temporary-folder-long",
            Severity.ERROR,
            f"The engine's sockets are in the temporary folder, whose path is too long for a socket: {place[:120]}.",
            place[:120],
            "Choose a shorter one.",
            "export TMPDIR=/tmp",
        )
    mount = subject.here.mount_of(Path(place))
    if mount is not None and "noexec" in mount.options and subject.compiles and subject.traits.torch_compile:
        yield _finding(
            "temporary-folder-noexec",
            Severity.WARNING,
            f"{mount.place} is mounted noexec, and torch.compile loads its code from there. It would fail with "
            '"failed to '
            'map segment from shared object".',
            place,
            "Use another folder for compiled code.",
            f"export TORCHINDUCTOR_CACHE_DIR={subject.context.home.root}/caches/inductor",
        )


def _usable(subject: Subject, place: str) -> bool:
    folder = subject.here.at(place)
    try:
        return folder.is_dir() and can_write(folder)
    except (OSError, ValueError):
        return False


def _finding(id: str, severity: Severity, message: str, value: str, remedy: str, command: str) -> Finding:
    return Finding(
        id=id,
        severity=severity,
        message=message,
        field="TMPDIR",
        value=value,
        fix=Fix(text=remedy, command=command),
    )
