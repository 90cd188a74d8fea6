"""Which version of libstdc++ a compiled C++ module needs, and which one this machine has.

Each version of its interface has a name, such as GLIBCXX_3.4.32, found in the library that defines it and in the
modules that use it (https://gcc.gnu.org/onlinedocs/libstdc++/manual/abi.html).
"""

from __future__ import annotations

import ctypes
import re
from collections.abc import Iterable
from functools import cache
from pathlib import Path

_NAME = re.compile(rb"GLIBCXX_(3\.4(?:\.\d+)?)\0")
_LIBRARY = "libstdc++.so.6"


def newest(libraries: Iterable[bytes]) -> str:
    """The newest version named in any of `libraries`, such as "3.4.32"; empty if there is none."""
    found = {match.decode() for library in libraries for match in _NAME.findall(library)}
    return max(found, key=_numbers, default="")


@cache
def here() -> str:
    """The newest version of this machine's libstdc++; empty without one."""
    try:
        ctypes.CDLL(_LIBRARY)  # the loader finds it where a module's would be found
        maps = Path("/proc/self/maps").read_text(errors="replace").splitlines()
        path = next(line.split(maxsplit=5)[-1] for line in maps if f"/{_LIBRARY}" in line)
        return newest([Path(path).read_bytes()])
    except (OSError, StopIteration):
        return ""


def serves(wanted: str, there: str) -> bool:
    """Whether modules that need `wanted` can be loaded where `there` is the newest version."""
    return not wanted or _numbers(wanted) <= _numbers(there)


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split(".") if part)
