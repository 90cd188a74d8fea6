"""Filling parameters from files: formats are converted, and what is not as the config says is refused."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from appliance.checkpoint.safetensors import read_index
from appliance.engine.weights import load_weights, unused_tensors
from kernels.fp8_linear.reference import dequantise

SHAPE = (200, 144)


def index_of(folder: Path, **tensors: torch.Tensor):
    save_file(tensors, folder / "model.safetensors")
    return read_index(folder)


def quantised(scale_dtype: torch.dtype) -> dict[str, torch.Tensor]:
    torch.manual_seed(1)
    weight = torch.randn(SHAPE).to(torch.float8_e4m3fn)
    return {"a.weight": weight, "a.weight_scale_inv": torch.rand(2, 2).to(scale_dtype)}


@pytest.mark.parametrize("scales", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
def test_blocks_are_multiplied_out_where_the_room_is_not_in_fp8(tmp_path, dtype, scales):
    """Rows and columns that are no whole blocks among them; each number rounded once."""
    stored = quantised(scales)
    room = {"a.weight": torch.empty(SHAPE, dtype=dtype), "a.weight_scale_inv": torch.empty(2, 2)}
    load_weights(index_of(tmp_path, **stored), room, lambda done, total: None)
    expected = dequantise(stored["a.weight"], stored["a.weight_scale_inv"].float(), dtype)
    assert torch.equal(room["a.weight"], expected)


def test_blocks_stay_where_the_room_is_in_fp8(tmp_path):
    stored = quantised(torch.float32)
    room = {name: torch.empty_like(tensor) for name, tensor in stored.items()}
    seen: list[tuple[int, int]] = []
    size = load_weights(index_of(tmp_path, **stored), room, lambda done, total: seen.append((done, total)))
    assert torch.equal(room["a.weight"].view(torch.uint8), stored["a.weight"].view(torch.uint8))
    assert torch.equal(room["a.weight_scale_inv"], stored["a.weight_scale_inv"])
    assert seen[-1] == (size, size) == (200 * 144 + 16, 200 * 144 + 16)


@pytest.mark.parametrize("fp8", [True, False])
def test_a_format_that_the_config_does_not_say_is_refused(tmp_path, fp8):
    """Bare FP8 numbers mean nothing without their scales, nor scales without them."""
    stored = quantised(torch.float32)
    if fp8:
        room = {"a.weight": torch.empty(SHAPE)}
    else:
        stored["a.weight"] = stored["a.weight"].float()
        room = {name: torch.empty_like(tensor) for name, tensor in stored.items()}
    with pytest.raises(ValueError, match="quantization_config"):
        load_weights(index_of(tmp_path, **stored), room, lambda done, total: None)


def test_what_is_missing_or_misshapen_is_named(tmp_path):
    index = index_of(tmp_path, a=torch.ones(2), b=torch.ones(3))
    with pytest.raises(ValueError, match=r"\bc$"):
        load_weights(index, {"a": torch.empty(2), "c": torch.empty(2)}, lambda done, total: None)
    with pytest.raises(ValueError, match=r"b has the shape \[3\]"):
        load_weights(index, {"a": torch.empty(2), "b": torch.empty(2)}, lambda done, total: None)
    assert unused_tensors(index, {"a": torch.empty(2)}) == ["b"]
