"""SELinux lets the container read the model folder, judging by its labels."""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterator
from pathlib import Path

from appliance.preflight.subject import Subject
from appliance.protocol import Finding, Fix, Severity

CONTAINER = "container_t"
# Labels that processes of containers may read.
READABLE = ("container_file_t", "container_ro_file_t", "container_share_t", "usr_t", "nfs_t", "cifs_t", "fusefs_t")


def run(subject: Subject) -> Iterator[Finding]:
    if subject.here.number("/sys/fs/selinux/enforce") != 1:
        return
    own = (subject.here.text("/proc/self/attr/current") or "").rstrip("\0\n")
    kind = _type(own)
    label = _label(subject.folder)
    if kind != CONTAINER or label is None or _type(label) in READABLE:
        return
    yield Finding(
        id="selinux-label",
        severity=Severity.WARNING,
        message=f"SELinux is enforcing, and containers may not read {subject.folder}: its label is {_type(label)}.",
        field="model.path",
        value=subject.profile.model.path,
        evidence=(f"this process: {own[:80]}", f"the folder: {label[:80]}"),
        fix=Fix(
            text="Add `:z` to the volume in compose.yaml, or label the models folder on the machine.",
            command=f"chcon -Rt container_file_t {shlex.quote(str(subject.context.home.models))}",
        ),
    )


def _type(context: str) -> str:
    """Of `user:role:type:level`."""
    parts = context.split(":")
    return parts[2] if len(parts) > 2 else ""


def _label(path: Path) -> str | None:
    try:
        return os.getxattr(path, "security.selinux").decode(errors="replace").rstrip("\0")
    except OSError:
        return None
