"""Compilers among the libraries that are mapped into this process: native code that compiles leaves its trace here,
where no guard in Python sees it."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Final

# Mapped only by a compilation: NVRTC loads its builtins, and others NVVM, when they are given something to compile.
COMPILING: Final = ("libnvrtc-builtins", "libnvvm")
# Mapped by who might compile: the driver loads its compiler of PTX when it meets some. If it was there as soon as the
# device was, nothing had been launched yet.
NEWLY: Final = ("libnvidia-ptxjitcompiler",)
# Mapped without compiling anything as well: torch reaches the driver through a library that is linked to NVRTC.
LINKED: Final = ("libnvrtc",)


def compilers(maps: Path = Path("/proc/self/maps")) -> frozenset[str]:
    """The file names of all compilers of CUDA code that are mapped now."""
    paths = (line.split(maxsplit=5)[-1] for line in maps.read_text(errors="replace").splitlines())
    names = {path.rpartition("/")[2] for path in paths if "/" in path}
    return frozenset(name for name in names if name.startswith((*COMPILING, *NEWLY, *LINKED)))


def that_compiled(before: Iterable[str], now: Iterable[str]) -> list[str]:
    """Those of `now` that compiled something. `before`: as it was when the device had been opened and nothing launched.

    >>> that_compiled([], ["libnvrtc.so.13", "libnvrtc-builtins.so.13.0"])
    ['libnvrtc-builtins.so.13.0']
    """
    return sorted(
        name for name in now if name.startswith(COMPILING) or (name.startswith(NEWLY) and name not in set(before))
    )
