"""Weights come into the system's cache of files before anybody reads them, and no more of them than is said."""

from __future__ import annotations

import asyncio
import os
import threading
import time
from pathlib import Path

import pytest

from appliance.checkpoint.read_ahead import read_ahead, read_ahead_of_launch
from appliance.hardware.host import Host

MIB = 1 << 20


def is_cached(path: Path, offset: int) -> bool:
    """Whether a read there would not wait for the disk."""
    with path.open("rb") as file:
        try:
            return bool(os.preadv(file.fileno(), [bytearray(1)], offset, os.RWF_NOWAIT))
        except BlockingIOError:
            return False


@pytest.fixture
def dropped(tmp_path):
    """Two files that are on the disk alone, larger than what a device reads ahead at once."""
    paths = [tmp_path / name for name in ("a", "b")]
    for path in paths:
        with path.open("wb") as file:
            file.write(os.urandom(64 * MIB))
            file.flush()
            os.fsync(file.fileno())
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    try:
        cached = is_cached(paths[0], 0)
    except OSError:
        cached = True
    if cached:
        pytest.skip("this file system keeps its files in memory")
    return paths


def test_the_first_bytes_are_cached_in_the_order_of_the_files(dropped):
    read_ahead(dropped, 80 * MIB)
    deadline = time.monotonic() + 20
    wanted = [(dropped[0], 0), (dropped[0], 64 * MIB - 1), (dropped[1], 16 * MIB - 1)]
    while not all(is_cached(*place) for place in wanted):
        assert time.monotonic() < deadline
        time.sleep(0.01)
    assert not is_cached(dropped[1], 48 * MIB)


def test_a_file_that_is_not_there_keeps_none_of_the_others_away(dropped, tmp_path):
    read_ahead([tmp_path / "gone", dropped[0]], MIB)
    deadline = time.monotonic() + 20
    while not is_cached(dropped[0], MIB - 1):
        assert time.monotonic() < deadline
        time.sleep(0.01)


async def test_it_ends_when_its_launch_does(tmp_path, monkeypatch):
    """A model may be larger than what its disk reads in the time that a shutdown has."""
    path = tmp_path / "large"
    with path.open("wb") as file:
        file.truncate(1 << 30)
    begun, pieces = threading.Event(), []

    def slow(*piece: int) -> None:
        begun.set()
        pieces.append(piece)
        time.sleep(0.01)

    monkeypatch.setattr(os, "posix_fadvise", slow)
    monkeypatch.setattr("appliance.checkpoint.read_ahead.read_host", lambda: host(64 << 30))
    task = asyncio.create_task(read_ahead_of_launch(lambda: [path]))
    await asyncio.to_thread(begun.wait, 20)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await asyncio.wait_for(asyncio.get_running_loop().shutdown_default_executor(), 5)  # all of it would take 80 s
    assert 0 < len(pieces) < 1000


@pytest.mark.parametrize(("available_mib", "read_mib"), [(8, 4), (0, 0), (1 << 20, 6)])
async def test_no_more_is_read_than_memory_keeps(tmp_path, monkeypatch, available_mib, read_mib):
    """In a container, of what its limit leaves: `memory_available_bytes` is that."""
    paths = [tmp_path / name for name in ("a", "b")]
    for path in paths:
        path.write_bytes(bytes(5 * MIB))
    asked = []
    monkeypatch.setattr(os, "posix_fadvise", lambda file, start, length, advice: asked.append(length))
    monkeypatch.setattr("appliance.checkpoint.read_ahead.read_host", lambda: host(available_mib * MIB))
    await read_ahead_of_launch(lambda: paths, 6 * MIB)
    assert sum(asked) == read_mib * MIB


def host(available: int) -> Host:
    return Host(cores=4, memory_bytes=64 << 30, memory_available_bytes=available)
