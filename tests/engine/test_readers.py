"""Several threads read the weights: what they read arrives as it is, what cannot be read is named, and little of the
host's memory is taken meanwhile."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from appliance.checkpoint.errors import CheckpointError
from appliance.checkpoint.safetensors import TensorIndex, read_header, read_index
from appliance.checkpoint.sharding import Shard
from appliance.engine import readers, weights
from appliance.engine.readers import num_readers
from appliance.engine.weights import load_weights

MIB = 1 << 20


@pytest.fixture(autouse=True)
def small_parts(monkeypatch):
    """So that tensors of a test are cut as large ones are."""
    for module in (readers, weights):
        monkeypatch.setattr(module, "PART_BYTES", 4096)


def stored(folder: Path, **tensors: torch.Tensor) -> TensorIndex:
    save_file(tensors, folder / "model.safetensors")
    return read_index(folder)


def load(index: TensorIndex, room: dict[str, torch.Tensor], shards: dict[str, Shard] | None = None) -> list[int]:
    """What was reported, in bytes."""
    seen: list[int] = []
    load_weights(index, room, lambda done, total: seen.append(done), shards)
    return seen


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=str)
def test_tensors_of_all_sizes_arrive_whatever_their_offsets(tmp_path, dtype):
    """Larger than a part, smaller, of one number, of none, and behind a number of odd bytes."""
    torch.manual_seed(0)
    shapes = {"a": (300, 123), "b": (5,), "c": (1, 9000), "d": (), "e": (0, 7), "f": (3, 2, 5000), "g": (64,)}
    tensors = {name: torch.randn(shape).to(torch.bfloat16) for name, shape in shapes.items()}
    index = stored(tmp_path, **tensors, bytes=torch.zeros(3, dtype=torch.uint8))
    room = {name: torch.full(tensor.shape, torch.nan, dtype=dtype) for name, tensor in tensors.items()}
    seen = load(index, room)
    assert all(torch.equal(room[name], tensor.to(dtype)) for name, tensor in tensors.items())
    assert seen == sorted(seen)
    assert seen[-1] == sum(tensor.nbytes for tensor in tensors.values())


def test_parts_of_a_fused_room_arrive_side_by_side(tmp_path):
    tensors = {name: torch.randn(40, 70) for name in "qkv"}
    fused = torch.full((120, 70), torch.nan)
    load(stored(tmp_path, **tensors), dict(zip("qkv", fused.split(40), strict=True)))
    assert torch.equal(fused, torch.cat([tensors[name] for name in "qkv"]))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16], ids=str)
@pytest.mark.parametrize("dim", [0, 1, 2])
def test_a_rank_takes_its_ranges_and_zeros_behind_them(tmp_path, dim, dtype):
    whole = torch.randn(60, 50, 40)
    ranges = (range(3, 11), range(20, 33))
    size = [60, 50, 40]
    size[dim] = 25  # four more than the ranges have
    room = torch.full(size, torch.nan, dtype=dtype)
    load(stored(tmp_path, a=whole), {"a": room}, {"a": Shard((60, 50, 40), dim, ranges)})
    taken = torch.cat([whole.narrow(dim, each.start, len(each)) for each in ranges], dim).to(dtype)
    assert torch.equal(room.narrow(dim, 0, 21), taken)
    assert not room.narrow(dim, 21, 4).any()


def test_a_rank_reads_only_its_rows(tmp_path, monkeypatch):
    read: list[int] = []
    preadv = os.preadv

    def counted(*of: Any) -> int:
        read.append(preadv(*of))
        return read[-1]

    monkeypatch.setattr(os, "preadv", counted)
    whole = torch.randn(1000, 8)
    room = torch.empty(100, 8)
    load(stored(tmp_path, a=whole), {"a": room}, {"a": Shard((1000, 8), 0, (range(900, 1000),))})
    assert sum(read) == room.nbytes
    assert torch.equal(room, whole[900:])


def test_readers_read_at_the_same_time(tmp_path, monkeypatch):
    """Each waits for the other within its first read."""
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1})
    together, first = threading.Barrier(2, timeout=20), threading.local()
    preadv = os.preadv

    def met(*of):
        if not hasattr(first, "met"):
            first.met = True
            together.wait()
        return preadv(*of)

    monkeypatch.setattr(os, "preadv", met)
    tensor = torch.randn(64, 1024)
    room = torch.empty_like(tensor)
    load(stored(tmp_path, a=tensor), {"a": room})
    assert torch.equal(room, tensor)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16], ids=["in place", "converted"])
def test_a_file_that_was_cut_after_the_check_is_named_with_its_tensor(tmp_path, dtype):
    index = stored(tmp_path, a=torch.randn(64, 64), b=torch.randn(64, 640))
    end = index.tensors["b"].begin + 5000
    os.truncate(index.files[0], end)
    room = {"a": torch.empty(64, 64, dtype=dtype), "b": torch.empty(64, 640, dtype=dtype)}
    with pytest.raises(CheckpointError) as found:
        load(index, room)
    error = found.value
    assert (error.id, error.file, error.field) == ("weights-unreadable", index.files[0], "b")
    assert error.evidence == (f"offset {end}",)
    assert error.fix.text
    with pytest.raises(CheckpointError) as before:
        read_header(index.files[0])
    assert before.value.id == "safetensors-invalid"


def test_a_disk_that_fails_is_named_with_file_and_tensor(tmp_path, monkeypatch):
    index = stored(tmp_path, a=torch.randn(64, 64), b=torch.randn(64, 640))
    bad, preadv = index.tensors["b"].begin, os.preadv

    def fail(file, buffers, offset, flags=0):
        if offset >= bad:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return preadv(file, buffers, offset, flags)

    monkeypatch.setattr(os, "preadv", fail)
    with pytest.raises(CheckpointError) as found:
        load(index, {"a": torch.empty(64, 64), "b": torch.empty(64, 640)})
    assert (found.value.id, found.value.file, found.value.field) == ("weights-unreadable", index.files[0], "b")
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("weights-")]


def test_a_file_that_is_gone_is_named(tmp_path):
    index = stored(tmp_path, a=torch.randn(4))
    index.files[0].unlink()
    with pytest.raises(CheckpointError) as found:
        load(index, {"a": torch.empty(4)})
    assert (found.value.id, found.value.file) == ("weights-unreadable", index.files[0])


def test_a_slow_disk_is_seen_to_move(tmp_path, monkeypatch):
    """Twice a second at least, however little that is."""
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0})
    monkeypatch.setattr(readers, "_WORD_S", 0.0)
    tensor = torch.randn(64, 1024)
    seen = load(stored(tmp_path, a=tensor), {"a": torch.empty_like(tensor)})
    assert len(seen) == tensor.nbytes // 4096
    assert seen[-1] == tensor.nbytes


PEAK = """
import re, sys, torch
from pathlib import Path
from appliance.checkpoint.safetensors import read_index
from appliance.engine.weights import load_weights
def hwm(): return int(re.search(r"VmHWM:\\s+(\\d+)", Path("/proc/self/status").read_text())[1]) << 10
index, dtype = read_index(Path(sys.argv[1])), getattr(torch, sys.argv[2])
load_weights(index, {"small": torch.empty(64, dtype=dtype)}, lambda *_: None)  # what the first call loads
before = hwm()
room = {name: torch.empty(entry.shape, dtype=dtype) for name, entry in index.tensors.items()}
load_weights(index, room, lambda *_: None)
print(hwm() - before - sum(tensor.nbytes for tensor in room.values()))
"""


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_loading_takes_a_few_buffers_above_the_weights(tmp_path, dtype):
    """Far less than the largest tensor, converted or not."""
    stored(tmp_path, small=torch.zeros(64, dtype=torch.bfloat16), large=torch.zeros(96, MIB, dtype=torch.bfloat16))
    done = subprocess.run(
        [sys.executable, "-c", PEAK, str(tmp_path), dtype], capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
    buffers = num_readers() * 8 * MIB
    assert int(done.stdout) < buffers + 16 * MIB
