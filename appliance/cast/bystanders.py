"""Detects compiled files by where they would be written: the cast itself, or the caches of the compilers."""

from __future__ import annotations

import os
from pathlib import Path

Snapshot = dict[str, tuple[int, int]]

# Variables that name the caches of Triton, the driver, FlashInfer and torch. The process that launches the kernels has
# all of them in an empty folder of its own, so that files another process compiles meanwhile are not counted.
CACHES = (
    "TRITON_HOME",
    "TRITON_CACHE_DIR",
    "CUDA_CACHE_PATH",
    "FLASHINFER_WORKSPACE_BASE",
    "PYTORCH_KERNEL_CACHE_PATH",
    "TORCH_EXTENSIONS_DIR",
    "TORCHINDUCTOR_CACHE_DIR",
    "XDG_CACHE_HOME",
)


def snapshot(folder: Path) -> Snapshot:
    """Path -> (size, modification time in ns) of every file in `folder`."""
    found: Snapshot = {}
    for place, _, names in os.walk(folder):
        for name in names:
            path = os.path.join(place, name)
            try:
                status = os.lstat(path)
            except FileNotFoundError:  # deleted since it was listed
                continue
            found[path] = (status.st_size, status.st_mtime_ns)
    return found


def differences(before: Snapshot, after: Snapshot) -> list[str]:
    changed = sorted(path for path in before.keys() | after.keys() if before.get(path) != after.get(path))
    return [f"{path} changed during the check." for path in changed]
