"""Reads parts of files with several threads: straight into their place in host memory, or by way of a few pinned
buffers into a GPU's, which are filled again while the copies before them are still on the bus."""

from __future__ import annotations

import mmap
import os
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from queue import SimpleQueue
from typing import Final, NamedTuple

import torch
from torch import Tensor

from appliance.checkpoint.errors import CheckpointError
from appliance.checkpoint.safetensors import COPY_AGAIN

# One thread copies some 8 GB/s out of the system's cache of files; a GPU's bus takes 25 to 55.
MOST_READERS: Final = 8
# Of a part, where it can be cut: large enough for a disk, small enough for a processor's cache.
PART_BYTES: Final = 8 << 20
# Some are filled while others are copied. All together are the most that loading takes of the host's memory.
BUFFERS_EACH: Final = 2
# Where in a buffer a tensor may begin: torch wants it aligned to its numbers.
_ALIGNMENT: Final = 8


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
    called in this thread with the bytes of each read.

    Raises:
        CheckpointError: a file cannot be read, or ends before a part does.
    """
    reads = list(_together(parts, device))
    buffered = [each.size for each in reads if each.room is None]
    count = min(BUFFERS_EACH * num_readers(), len(buffered))
    with (
        _opened({part.file for part in parts}) as files,
        _buffers(count, max(buffered, default=0), device) as buffers,
        _copying(device) as stream,
        _Readers(reads, files, buffers) as readers,
    ):
        for _ in reads:
            each, buffer = readers.next()
            if buffer is not None:
                with torch.cuda.stream(stream):  # which is None on a CPU, and does nothing
                    _hand_over(each, buffer, device)
                readers.give_back(buffer)
            progress(each.size)


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


class _Buffer:
    """`memory` is uint8. `copied`, on a GPU, is when the device has what was in it."""

    def __init__(self, memory: Tensor, device: torch.device) -> None:
        self.memory = memory
        self.copied = torch.cuda.Event(blocking=True) if device.type == "cuda" else None


def _hand_over(read: _Read, buffer: _Buffer, device: torch.device) -> None:
    for part in read.parts:
        source = buffer.memory[part.begin - read.begin : part.end - read.begin]
        if part.room is not None:
            part.room.copy_(source, non_blocking=True)
        elif part.take is not None:
            part.take(source.to(device, non_blocking=True))
    if buffer.copied is not None:
        buffer.copied.record()


class _Failure(NamedTuple):
    order: int  # of the read
    error: BaseException


class _Readers:
    """Threads that read one after the other of `reads`; whoever has one from `next` gives its buffer back."""

    def __init__(self, reads: Sequence[_Read], files: Mapping[Path, int], buffers: Sequence[_Buffer]) -> None:
        self._reads, self._lock = enumerate(reads), threading.Lock()
        self._files = files
        self._free: SimpleQueue[_Buffer | None] = SimpleQueue()
        self._done: SimpleQueue[tuple[_Read, _Buffer | None] | _Failure] = SimpleQueue()
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

    def next(self) -> tuple[_Read, _Buffer | None]:
        """What has been read, and the buffer that it is in, if it is in one. Raises what a thread did: the first in the
        order of the reads, whichever came to it first."""
        found = self._done.get()
        if not isinstance(found, _Failure):
            return found
        self._stop()
        failures = [found]
        while not self._done.empty():
            if isinstance(other := self._done.get(), _Failure):
                failures.append(other)
        raise min(failures, key=lambda failure: failure.order).error

    def give_back(self, buffer: _Buffer) -> None:
        self._free.put(buffer)

    def _run(self) -> None:
        order = 0
        try:
            while not self._stopping:
                with self._lock:
                    taken = next(self._reads, None)
                if taken is None:
                    return
                order, read = taken
                buffer = None
                room = read.room
                if room is None:
                    buffer = self._free.get()
                    if buffer is None:
                        return
                    if buffer.copied is not None:
                        buffer.copied.synchronize()
                    room = buffer.memory[: read.size]
                _fill(room, self._files[read.parts[0].file], read)
                self._done.put((read, buffer))
        except BaseException as error:  # noqa: BLE001 - raised where it is waited for
            self._done.put(_Failure(order, error))


def _fill(room: Tensor, file: int, read: _Read) -> None:
    left, offset = room.numpy().data, read.begin
    os.posix_fadvise(file, offset, len(left), os.POSIX_FADV_WILLNEED)  # all of it at once, not bit by bit
    while left:
        try:
            count = os.preadv(file, [left], offset)
        except OSError as error:
            remedy = f"Look for errors of its disk (dmesg). {COPY_AGAIN}"
            raise _unreadable(read, offset, f"cannot be read: {error.strerror or error}", remedy) from error
        if not count:
            raise _unreadable(read, offset, "is truncated: it ends there", COPY_AGAIN)
        left, offset = left[count:], offset + count


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
def _buffers(count: int, size: int, device: torch.device) -> Iterator[list[_Buffer]]:
    """Memory of their own, which goes back to the system as a whole. A GPU copies from it directly."""
    if not count:
        yield []
        return
    size = -(-size // mmap.PAGESIZE) * mmap.PAGESIZE
    with ExitStack() as stack:
        memory = torch.frombuffer(mmap.mmap(-1, count * size), dtype=torch.uint8)
        if device.type == "cuda":
            driver = torch.cuda.cudart()
            torch.cuda.check_error(driver.cudaHostRegister(memory.data_ptr(), memory.nbytes, 0))
            stack.callback(driver.cudaHostUnregister, memory.data_ptr())
        yield [_Buffer(each, device) for each in memory.split(size)]


@contextmanager
def _copying(device: torch.device) -> Iterator[torch.cuda.Stream | None]:
    """A stream for copies alone, on a GPU; they are complete in the end."""
    if device.type != "cuda":
        yield None
        return
    stream = torch.cuda.Stream(device)
    stream.wait_stream(torch.cuda.current_stream(device))
    try:
        yield stream
    finally:
        stream.synchronize()  # before its buffers are let go
    torch.cuda.empty_cache()  # of what was converted there; no other stream would use that
