"""Reads parts of files with several threads: straight into their place in host memory, or by way of a pinned buffer
each into a GPU's, some reading while others copy."""

from __future__ import annotations

import mmap
import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from queue import SimpleQueue
from typing import Final, NamedTuple

import torch
from torch import Tensor

from appliance.checkpoint.errors import CheckpointError
from appliance.checkpoint.safetensors import COPY_AGAIN

# Each copies some 6 GB/s out of the system's cache of files, as long as it reads; a GPU's bus takes 25 to 55.
MOST_READERS: Final = 12
# Of a part, where it can be cut. Each reader has a buffer of one part: together the most that loading takes of the
# host's memory, little enough for a processor's cache.
PART_BYTES: Final = 8 << 20
# Where in a buffer a tensor may begin: torch wants it aligned to its numbers.
_ALIGNMENT: Final = 8
# What a reader reads before it says so, and after how many seconds it does at the latest: each word costs the others
# a moment.
_WORD_BYTES: Final = 64 << 20
_WORD_S: Final = 0.5


class Part(NamedTuple):
    """The bytes `begin` to `end` of `file`, which are of `tensor`. As they are they go to `room`, uint8 [end - begin];
    where there is none, `take` is given them, uint8 [end - begin] on the device, and they are gone when it returns."""

    tensor: str
    file: Path
    begin: int
    end: int
    room: Tensor | None = None
    take: Callable[[Tensor], object] | None = None


def num_readers() -> int:
    return min(MOST_READERS, len(os.sched_getaffinity(0)))


def read_parts(parts: Sequence[Part], device: torch.device, progress: Callable[[int], None]) -> None:
    """Read `parts`, whose rooms are on `device`, in their order: best that in which they lie on the disk. `progress` is
    called in this thread with the bytes that have been read since its last call.

    Raises:
        CheckpointError: a file cannot be read, or ends before a part does.
    """
    reads = list(_together(parts, device))
    buffered = [each.size for each in reads if each.room is None]
    left = sum(each.size for each in reads)
    if device.type == "cuda":
        torch.cuda.synchronize(device)  # nothing older is to be written into a room
    with (
        _opened({part.file for part in parts}) as files,
        _buffers(min(num_readers(), len(buffered)), max(buffered, default=0), device) as buffers,
        _Readers(reads, files, buffers, device) as readers,
    ):
        while left:
            size = readers.next()
            progress(size)
            left -= size
    if device.type == "cuda":
        torch.cuda.empty_cache()  # of what was converted: no other stream would use that


class _Read(NamedTuple):
    """Parts that lie side by side in their file. Those with a `room` on the host are read there, and alone."""

    parts: tuple[Part, ...]
    room: Tensor | None

    @property
    def begin(self) -> int:
        return self.parts[0].begin

    @property
    def size(self) -> int:
        return self.parts[-1].end - self.begin

    def part_at(self, offset: int) -> Part:
        return next(part for part in self.parts if offset < part.end)


def _together(parts: Sequence[Part], device: torch.device) -> Iterator[_Read]:
    """Small ones at once: a checkpoint may have a hundred thousand tensors."""
    held: list[Part] = []
    for part in parts:
        in_place = part.room is not None and device.type == "cpu"
        if held and (in_place or not _continues(held, part)):
            yield _Read(tuple(held), None)
            held = []
        if in_place:
            yield _Read((part,), part.room)
        elif part.end > part.begin:
            held.append(part)
    if held:
        yield _Read(tuple(held), None)


def _continues(held: Sequence[Part], part: Part) -> bool:
    first, last = held[0], held[-1]
    return (
        part.file == first.file
        and part.begin == last.end
        and not (part.begin - first.begin) % _ALIGNMENT
        and part.end - first.begin <= PART_BYTES
    )


def _hand_over(read: _Read, buffer: Tensor, device: torch.device) -> None:
    """Returns when `buffer` may be overwritten."""
    for part in read.parts:
        source = buffer[part.begin - read.begin : part.end - read.begin]
        if part.room is not None:
            part.room.copy_(source)
        elif part.take is not None:
            part.take(source.to(device))


class _Word(NamedTuple):
    """That so many bytes have been read, and handed over unless the buffer is `full`."""

    size: int
    full: tuple[_Read, Tensor] | None = None


class _Failure(NamedTuple):
    order: int  # of the read
    error: BaseException


class _Readers:
    """Threads that read one after the other of `reads`. On a GPU each hands over what it has read by a stream of its
    own. On a CPU whoever calls `next` does: what is converted takes all processors as it is."""

    def __init__(
        self, reads: Sequence[_Read], files: Mapping[Path, int], buffers: Sequence[Tensor], device: torch.device
    ) -> None:
        self._reads, self._lock = enumerate(reads), threading.Lock()
        self._files, self._device = files, device
        self._free: SimpleQueue[Tensor | None] = SimpleQueue()
        self._words: SimpleQueue[_Word | _Failure] = SimpleQueue()
        for buffer in buffers:
            self._free.put(buffer)
        self._stopping = False
        count = min(num_readers(), len(reads))
        self._threads = [threading.Thread(target=self._run, name=f"weights-{i}", daemon=True) for i in range(count)]

    def __enter__(self) -> _Readers:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop()

    def _stop(self) -> None:
        self._stopping = True
        for _ in self._threads:
            self._free.put(None)
        for thread in self._threads:
            thread.join()

    def next(self) -> int:
        """Wait for some bytes, and say how many. Raises what a thread did: the first in the order of the reads,
        whichever came to it first."""
        word = self._words.get()
        if isinstance(word, _Failure):
            self._stop()
            failures = [word]
            while not self._words.empty():
                if isinstance(other := self._words.get(), _Failure):
                    failures.append(other)
            raise min(failures, key=lambda failure: failure.order).error
        if word.full is not None:
            read, buffer = word.full
            _hand_over(read, buffer, self._device)
            self._free.put(buffer)
        return word.size

    def _run(self) -> None:
        order = 0
        on_gpu = self._device.type == "cuda"
        try:
            with torch.cuda.stream(torch.cuda.Stream(self._device) if on_gpu else None):
                unsaid, said = 0, time.monotonic()
                while (taken := self._take()) is not None:
                    order, read = taken
                    buffer = None if read.room is not None else self._free.get()
                    room = read.room if buffer is None else buffer[: read.size]
                    if room is None:
                        return  # it is to stop
                    _fill(room, self._files[read.parts[0].file], read)
                    if buffer is not None and not on_gpu:
                        self._words.put(_Word(read.size, (read, buffer)))
                        continue
                    if buffer is not None:
                        _hand_over(read, buffer, self._device)
                        self._free.put(buffer)
                    unsaid += read.size
                    if unsaid >= _WORD_BYTES or time.monotonic() - said >= _WORD_S:
                        self._words.put(_Word(unsaid))
                        unsaid, said = 0, time.monotonic()
                if on_gpu:
                    torch.cuda.current_stream().synchronize()  # what is converted
                if unsaid:
                    self._words.put(_Word(unsaid))
        except BaseException as error:  # noqa: BLE001 - raised where it is waited for
            self._words.put(_Failure(order, error))

    def _take(self) -> tuple[int, _Read] | None:
        with self._lock:
            return None if self._stopping else next(self._reads, None)


def _fill(room: Tensor, file: int, read: _Read) -> None:
    left, offset = room.numpy().data, read.begin
    count = _cached(file, left, offset)
    if count < len(left):
        os.posix_fadvise(file, offset + count, len(left) - count, os.POSIX_FADV_WILLNEED)  # at once, not bit by bit
    while left := left[count:]:
        offset += count
        try:
            count = os.preadv(file, [left], offset)
        except OSError as error:
            remedy = f"Look for errors of its disk (dmesg). {COPY_AGAIN}"
            raise _unreadable(read, offset, f"cannot be read: {error.strerror or error}", remedy) from error
        if not count:
            raise _unreadable(read, offset, "is truncated: it ends there", COPY_AGAIN)


def _cached(file: int, room: memoryview, offset: int) -> int:
    """How many bytes were read without waiting for a disk."""
    try:
        return os.preadv(file, [room], offset, os.RWF_NOWAIT)
    except OSError:  # none, or the file system cannot tell
        return 0


def _unreadable(read: _Read, offset: int, what: str, remedy: str) -> CheckpointError:
    part = read.part_at(offset)
    return CheckpointError(
        "weights-unreadable",
        f"{part.file.name}, at byte {offset:,} in {part.tensor}, {what}.",
        file=part.file,
        field=part.tensor,
        evidence=(f"offset {offset}",),
        remedy=remedy,
    )


@contextmanager
def _opened(paths: set[Path]) -> Iterator[dict[Path, int]]:
    files: dict[Path, int] = {}
    try:
        for path in paths:
            try:
                files[path] = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
            except OSError as error:
                message = f"{path.name} cannot be opened: {error.strerror or error}."
                remedy = "Make it a file that this user can read."
                raise CheckpointError("weights-unreadable", message, file=path, remedy=remedy) from error
        yield files
    finally:
        for file in files.values():
            os.close(file)


@contextmanager
def _buffers(count: int, size: int, device: torch.device) -> Iterator[list[Tensor]]:
    """`count` of at least `size` bytes: memory of their own, which goes back to the system as a whole. A GPU copies
    from it directly."""
    if not count:
        yield []
        return
    size = -(-size // mmap.PAGESIZE) * mmap.PAGESIZE
    memory = torch.frombuffer(mmap.mmap(-1, count * size), dtype=torch.uint8)
    with ExitStack() as stack:
        if device.type == "cuda":
            driver = torch.cuda.cudart()
            torch.cuda.check_error(driver.cudaHostRegister(memory.data_ptr(), memory.nbytes, 0))
            stack.callback(driver.cudaHostUnregister, memory.data_ptr())
        yield list(memory.split(size))
