"""The folders into which something compiled could have gone, before and after."""

from __future__ import annotations

import getpass
import tempfile
from pathlib import Path

Snapshot = dict[str, tuple[int, int]]

_IN_HOME = (
    ".triton",
    ".nv/ComputeCache",
    ".cache/flashinfer",
    ".cache/torch/kernels",
    ".cache/torch_extensions",
)


def snapshot(cast: Path) -> Snapshot:
    """Size and time of change of every file in the cast and in the usual caches."""
    inductor = Path(tempfile.gettempdir(), f"torchinductor_{getpass.getuser()}")
    found: Snapshot = {}
    for folder in (cast, inductor, *(Path.home() / name for name in _IN_HOME)):
        for path in folder.rglob("*"):
            status = path.lstat()
            found[str(path)] = (status.st_size, status.st_mtime_ns)
    return found


def differences(before: Snapshot, after: Snapshot) -> list[str]:
    changed = sorted(path for path in before.keys() | after.keys() if before.get(path) != after.get(path))
    return [f"{path} was written meanwhile: something was compiled." for path in changed]
