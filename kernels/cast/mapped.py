"""Compilers among the libraries that are mapped into this process: native code that compiles leaves its trace here,
where no guard in Python sees it."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Final

# Mapped by whoever is given something to compile: NVRTC loads its builtins, others NVVM, the driver its PTX compiler.
# Some builds of torch load NVRTC's builtins when they are imported (2.11 with CUDA 13 does), so those that were there
# before anything was launched prove nothing. What NVRTC then compiles, torch writes to its kernel cache, which `ingot
# verify` watches too.
COMPILING: Final = ("libnvrtc-builtins", "libnvvm", "libnvidia-ptxjitcompiler")
# Mapped without compiling anything as well: torch reaches the driver through a library that is linked to NVRTC.
LINKED: Final = ("libnvrtc",)


def compilers(maps: Path = Path("/proc/self/maps")) -> frozenset[str]:
    """The file names of all compilers of CUDA code that are mapped now."""
    paths = (line.split(maxsplit=5)[-1] for line in maps.read_text(errors="replace").splitlines())
    names = {path.rpartition("/")[2] for path in paths if "/" in path}
    return frozenset(name for name in names if name.startswith((*COMPILING, *LINKED)))


def that_compiled(before: Iterable[str], now: Iterable[str]) -> list[str]:
    """Those of `now` that compiled something. `before`: as it was when the device had been opened and nothing launched.

    >>> that_compiled([], ["libnvrtc.so.13", "libnvrtc-builtins.so.13.0"])
    ['libnvrtc-builtins.so.13.0']
    """
    return sorted(name for name in set(now) - set(before) if name.startswith(COMPILING))
