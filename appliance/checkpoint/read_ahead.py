"""Has the system read weights into its cache of files before they are wanted: while an engine imports its libraries,
the disk would do nothing."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Final

# Linux takes no more of one request than its window of a device, of which this is the least (`force_page_cache_ra`).
_PIECE: Final = 128 << 10
# What a fast disk reads in the second or two that this lasts; the system lets go of it again where memory is short.
MOST_BYTES: Final = 4 << 30


def read_ahead(files: Sequence[Path], most_bytes: int = MOST_BYTES) -> None:
    """The first `most_bytes` of `files`, in their order. Blocking for about as long as the disk takes; a file that
    cannot be read is left to who needs it."""
    left = most_bytes
    for path in files:
        if left <= 0:
            return
        with contextlib.suppress(OSError), path.open("rb") as file:
            size = min(os.fstat(file.fileno()).st_size, left)
            for start in range(0, size, _PIECE):
                os.posix_fadvise(file.fileno(), start, min(_PIECE, size - start), os.POSIX_FADV_WILLNEED)
            left -= size
