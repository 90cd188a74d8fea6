"""Has the system read weights into its cache of files before they are wanted: while an engine imports its libraries,
the disk would do nothing."""

from __future__ import annotations

import asyncio
import contextlib
import os
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

from appliance.hardware.host import Host, read_host

# Linux takes no more of one request than its window of a device, of which this is the least (`force_page_cache_ra`).
_PIECE: Final = 128 << 10
# What a fast disk reads in the second or two that this lasts; the system lets go of it again where memory is short.
MOST_BYTES: Final = 4 << 30


async def read_ahead_of_launch(files: Callable[[], Sequence[Path]], most_bytes: int = MOST_BYTES) -> None:
    """`read_ahead` in a thread that ends when this is cancelled, of as much as memory has room for. `files` may block,
    and is called there."""
    stop = threading.Event()

    def work() -> None:
        read_ahead(files(), min(most_bytes, _room_for_files(read_host())), stop)

    try:
        await asyncio.to_thread(work)
    finally:
        stop.set()


def _room_for_files(host: Host) -> int:
    """How many bytes of files stay cached until an engine has read them. The other half of what is free is the
    engine's own: where it lacks memory, the system drops pages that it would read from the disk again."""
    return host.memory_available_bytes // 2


def read_ahead(files: Sequence[Path], most_bytes: int = MOST_BYTES, stop: threading.Event | None = None) -> None:
    """The first `most_bytes` of `files`, in their order. Blocking for about as long as the disk takes, or until `stop`
    is set; a file that cannot be read is left to who needs it."""
    left = most_bytes
    for path in files:
        with contextlib.suppress(OSError), path.open("rb") as file:
            size = min(os.fstat(file.fileno()).st_size, left)
            for start in range(0, size, _PIECE):
                if stop is not None and stop.is_set():
                    return
                os.posix_fadvise(file.fileno(), start, min(_PIECE, size - start), os.POSIX_FADV_WILLNEED)
            left -= size
        if left <= 0:
            return
