"""What arrives in a GPU's memory is what arrives in the host's, however it is cut and converted."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from appliance.checkpoint.errors import CheckpointError
from appliance.checkpoint.safetensors import TensorIndex, read_index
from appliance.checkpoint.sharding import Shard
from appliance.engine import readers, weights
from appliance.engine.weights import load_weights

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")

PART_BYTES = 1 << 16  # so that there are many parts, and several of each tensor


@pytest.fixture(autouse=True)
def small_parts(monkeypatch):
    for module in (readers, weights):
        monkeypatch.setattr(module, "PART_BYTES", PART_BYTES)


def stored(folder: Path, **tensors: torch.Tensor) -> TensorIndex:
    save_file(tensors, folder / "model.safetensors")
    return read_index(folder)


def both(
    index: TensorIndex, rooms: dict[str, tuple[tuple[int, ...], torch.dtype]], shards: dict[str, Shard] | None = None
) -> None:
    """Load into both and compare every bit."""
    found = []
    for device in ("cpu", "cuda"):
        room = {
            name: torch.full(shape, 7, dtype=torch.float32, device=device).to(dtype)
            for name, (shape, dtype) in rooms.items()
        }
        load_weights(index, room, lambda done, total: None, shards)
        found.append({name: tensor.cpu().flatten().view(torch.uint8) for name, tensor in room.items()})
    host, gpu = found
    assert [name for name in rooms if not torch.equal(host[name], gpu[name])] == []


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, torch.float16], ids=str)
def test_tensors_of_all_sizes(tmp_path, dtype):
    torch.manual_seed(0)
    shapes = {"a": (3000, 1230), "b": (5,), "c": (1, 90_000), "d": (), "e": (0, 7), "f": (30, 2, 5000), "g": (64,)}
    tensors = {name: torch.randn(shape).to(torch.bfloat16) for name, shape in shapes.items()}
    index = stored(tmp_path, **tensors, bytes=torch.zeros(3, dtype=torch.uint8))
    both(index, {name: (shape, dtype) for name, shape in shapes.items()})


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("dim", [0, 1])
def test_a_rank_takes_its_ranges(tmp_path, dim, dtype):
    index = stored(tmp_path, a=torch.randn(600, 500))
    shape = (450, 500) if dim == 0 else (600, 450)
    both(index, {"a": (shape, dtype)}, {"a": Shard((600, 500), dim, (range(30, 230), range(250, 450)))})


@pytest.mark.parametrize("kept", [torch.bfloat16, torch.float8_e4m3fn], ids=str)
def test_blocks_of_fp8_stay_or_are_multiplied_out(tmp_path, kept):
    torch.manual_seed(1)
    weight = torch.randn(400, 300).to(torch.float8_e4m3fn)
    index = stored(tmp_path, **{"a.weight": weight, "a.weight_scale_inv": torch.rand(4, 3)})
    both(index, {"a.weight": ((400, 300), kept), "a.weight_scale_inv": ((4, 3), torch.float32)})


def test_mxfp4_is_unpacked(tmp_path):
    torch.manual_seed(2)
    codes = torch.randint(-128, 128, (300, 512), dtype=torch.int8)
    scales = (2.0 ** torch.randint(-3, 4, (300, 32))).to(torch.float8_e8m0fnu)
    index = stored(tmp_path, **{"a.weight": codes, "a.scale": scales})
    both(index, {"a.weight": ((300, 1024), torch.bfloat16), "a.scale": ((300, 32), torch.float8_e8m0fnu)})


def test_after_a_file_that_was_cut_the_next_one_loads(tmp_path):
    """No thread goes on, and no memory stays pinned, which could not be pinned again."""
    index = stored(tmp_path, a=torch.randn(1000, 1000))
    room = {"a": torch.empty(1000, 1000, device="cuda")}
    os.truncate(index.files[0], index.tensors["a"].begin + 3_000_000)
    with pytest.raises(CheckpointError) as found:
        load_weights(index, room, lambda done, total: None)
    assert (found.value.id, found.value.field) == ("weights-unreadable", "a")
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("weights-")]
    both(stored(tmp_path, a=torch.randn(1000, 1000)), {"a": ((1000, 1000), torch.float32)})
