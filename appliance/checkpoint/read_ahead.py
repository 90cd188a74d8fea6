"""Has the system read weights into its cache of files before they are wanted: while an engine imports its libraries,
the disk would do nothing."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Final

# What a fast disk reads in the second or two that this lasts; the system lets go of it again where memory is short.
MOST_BYTES: Final = 4 << 30


def read_ahead(files: Sequence[Path], most_bytes: int = MOST_BYTES) -> None:
    """The first `most_bytes` of `files`, in their order. Blocking, but for the reading itself; a file that cannot be
    read is left to who needs it."""
    left = most_bytes
    for path in files:
        if left <= 0:
            return
        with contextlib.suppress(OSError), path.open("rb") as file:
            size = min(os.fstat(file.fileno()).st_size, left)
            os.posix_fadvise(file.fileno(), 0, size, os.POSIX_FADV_WILLNEED)
            left -= size
