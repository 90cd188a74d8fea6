"""Whether this process is in a container, and whether its process numbers are the machine's."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Final

PROC = Path("/proc")
_FIRST_NAMESPACE: Final = "pid:[4026531836]"  # the machine's own: the kernel gives it this number
# A file that says who made the container.
_MARKS: Final = (("/.dockerenv", "Docker"), ("/run/.containerenv", "Podman"))


def container(environ: Mapping[str, str], proc: Path = PROC) -> str | None:
    """Who confines this process; None where nobody does."""
    if "KUBERNETES_SERVICE_HOST" in environ:
        return "Kubernetes"
    for mark, name in _MARKS:
        if os.path.exists(mark):
            return name
    if environ.get("container"):  # set by systemd-nspawn, LXC and others
        return environ["container"]
    return None if numbers_are_the_machines(proc) else "a container"


def numbers_are_the_machines(proc: Path = PROC) -> bool:
    """Whether a process has the same number here as on the whole machine."""
    try:
        return os.readlink(proc / "self" / "ns" / "pid") == _FIRST_NAMESPACE
    except OSError:  # no such file: nothing to be apart in
        return True
