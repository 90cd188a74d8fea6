"""Where a cast's files are, and how they are read: no path in a cast can lead out of its folder."""

from __future__ import annotations

import errno
import re
from collections.abc import Iterator
from pathlib import Path

TRITON = "triton"
FLASHINFER = "flashinfer"
_PART = r"\w[\w.+-]*"  # neither "..", nor hidden, nor empty
_PATH = re.compile(rf"({TRITON}|{FLASHINFER})/{_PART}/{_PART}", re.ASCII)


def is_path(path: str) -> bool:
    """Whether a cast may have a file there: triton/<key>/<file> or flashinfer/<module>/<file>."""
    return _PATH.fullmatch(path) is not None


def library_of(module: str) -> str:
    """The library of a FlashInfer module, where FlashInfer looks for it."""
    return f"{FLASHINFER}/{module}/{module}.so"


def libraries(cast: Path) -> Iterator[str]:
    """Every library FlashInfer could find in `cast`, whether it belongs there or not."""
    for place in sorted((cast / FLASHINFER).glob("*/*.so")):
        yield place.relative_to(cast).as_posix()


def read(cast: Path, path: str) -> bytes:
    """The content of a file of `cast`. Raises OSError, also if the path contains a symbolic link."""
    place = cast / path
    for linked in (place.parents[1], place.parent, place):
        if linked.is_symlink():
            raise OSError(errno.ELOOP, "the path contains a symbolic link", str(linked))
    return place.read_bytes()
