"""Compilers among the libraries mapped into this process. This reveals native code that compiles, which no guard in
Python can see."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Final

# Mapped by a compiler once it has something to compile: NVRTC loads its builtins, others NVVM, the driver its PTX
# compiler. Some builds of torch load NVRTC's builtins on import (2.11 with CUDA 13 does), so those mapped before
# anything was launched prove nothing. Whatever NVRTC then compiles, torch writes to its kernel cache, which `ingot
# verify` watches too.
COMPILING: Final = ("libnvrtc-builtins", "libnvvm", "libnvidia-ptxjitcompiler")
# Also mapped without compiling anything: torch reaches the driver through a library linked to NVRTC.
LINKED: Final = ("libnvrtc",)


def compilers(maps: Path = Path("/proc/self/maps")) -> frozenset[str]:
    """The file names of all CUDA compilers mapped now."""
    paths = (line.split(maxsplit=5)[-1] for line in maps.read_text(errors="replace").splitlines())
    names = {path.rpartition("/")[2] for path in paths if "/" in path}
    return frozenset(name for name in names if name.startswith((*COMPILING, *LINKED)))


def that_compiled(before: Iterable[str], now: Iterable[str]) -> list[str]:
    """Those of `now` that compiled something. `before` was taken with the device open and nothing launched yet.

    >>> that_compiled([], ["libnvrtc.so.13", "libnvrtc-builtins.so.13.0"])
    ['libnvrtc-builtins.so.13.0']
    """
    return sorted(name for name in set(now) - set(before) if name.startswith(COMPILING))
