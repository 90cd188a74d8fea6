"""`python -m tests.gpu.bench.loading_rates FILE ...`: how fast this machine brings files into a GPU's memory at best.
Prints one JSON object in GB/s: `cache`, several threads copying the files, which are in the system's cache, into small
buffers; `bus`, pinned memory to the GPU; `disk`, as `cache`, of 2 GiB that have been dropped from it before."""

from __future__ import annotations

import json
import mmap
import os
import statistics
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

THREADS = sorted({min(count, len(os.sched_getaffinity(0))) for count in (8, 12)})  # the better one counts
BUFFER = 8 << 20
PINNED = 256 << 20
COPIES = 16
OF_DISK = 2 << 30
ROUNDS = 3


def read_rate(files: Sequence[Path], threads: int, most: int | None = None, *, ahead: bool = False) -> float:
    """Bytes a second of all files, or of the first `most` bytes of each. `ahead`: the system is told of each read as a
    whole before, as a disk needs it."""
    opened = [os.open(file, os.O_RDONLY) for file in files]
    places = [(file, at) for file in opened for at in range(0, most or os.fstat(file).st_size, BUFFER)]
    buffers = [memoryview(mmap.mmap(-1, BUFFER)) for _ in range(threads)]

    def read(thread: int) -> int:
        total = 0
        for file, at in places[thread::threads]:
            if ahead:
                os.posix_fadvise(file, at, BUFFER, os.POSIX_FADV_WILLNEED)
            total += os.preadv(file, [buffers[thread]], at)
        return total

    with ThreadPoolExecutor(threads) as pool:
        started = time.perf_counter()
        total = sum(pool.map(read, range(threads)))
        taken = time.perf_counter() - started
    for file in opened:
        os.close(file)
    return total / taken


def drop_from_cache(files: Sequence[Path]) -> None:
    os.sync()  # what is not written yet stays
    for file in files:
        with file.open("rb") as opened:
            os.posix_fadvise(opened.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def disk_rate(file: Path) -> float:
    drop_from_cache([file])
    return read_rate([file], THREADS[-1], min(OF_DISK, file.stat().st_size), ahead=True)


def bus_rate() -> float:
    import torch  # whoever wants the rest only need not wait for it

    source = torch.empty(PINNED, dtype=torch.uint8, pin_memory=True)
    room = torch.empty(PINNED, dtype=torch.uint8, device="cuda")
    start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    found = []
    for _ in range(ROUNDS):
        start.record()
        for _ in range(COPIES):
            room.copy_(source, non_blocking=True)
        end.record()
        end.synchronize()
        found.append(COPIES * PINNED / start.elapsed_time(end) * 1e3)
    return statistics.median(found)


def main() -> None:
    files = [Path(name) for name in sys.argv[1:]]
    disk = disk_rate(files[0])
    read_rate(files, THREADS[-1])
    cache = max(statistics.median(read_rate(files, threads) for _ in range(ROUNDS)) for threads in THREADS)
    print(json.dumps({"cache": cache / 1e9, "bus": bus_rate() / 1e9, "disk": disk / 1e9}))


if __name__ == "__main__":
    main()
