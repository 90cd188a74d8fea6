"""The models that benchmarks make: sizes, and what a step of theirs reads."""

from __future__ import annotations

import json
import math

import pytest
import torch
from safetensors import safe_open

from appliance.checkpoint.config import read_config
from appliance.checkpoint.layout import expected_tensors
from kernels.fp8_linear.reference import dequantise
from tests.bench import shapes
from tests.bench.shapes import SHAPES, read_by_step, stored_tensors
from tests.tiny_shapes import tensor_shapes

BILLIONS = {
    "llama-27m": 0.0249, "tinyllama-1.1b": 1.1, "qwen3-8b": 8.19, "qwen3-30b-a3b": 30.5, "qwen3-next": 79.7,
    "qwen3-30b-a3b-fp8": 30.5, "deepseek-v3": 671,
}  # fmt: skip
# Where a shape is smaller than the model.
PUBLISHED = {"deepseek-v3": {"n_routed_experts": 256, "first_k_dense_replace": 3}}
# Layers that two servers hold beside each other on a GPU, and the gigabytes of one of them.
FEW = {"qwen3-next": (8, 27.6), "deepseek-v3": (4, 23.2)}


@pytest.mark.parametrize("name", SHAPES)
def test_a_shape_has_the_parameters_of_the_model_that_it_is_named_for(name):
    config = SHAPES[name].full_config | PUBLISHED.get(name, {})
    parameters = sum(math.prod(size) for _, size in tensor_shapes(config))
    assert parameters / 1e9 == pytest.approx(BILLIONS[name], rel=0.02)


@pytest.mark.parametrize("name", SHAPES)
def test_a_shape_has_the_tensors_that_the_engine_reads(name, tmp_path):
    shape = SHAPES[name].with_layers(FEW.get(name, (2, 0))[0])
    (tmp_path / "config.json").write_text(json.dumps(shape.full_config))
    expected = {name: tensor.shape for name, tensor in expected_tensors(read_config(tmp_path)).items()}
    assert {name: tensor.shape for name, tensor in stored_tensors(shape.full_config)} == expected


@pytest.mark.parametrize("name", FEW)
def test_a_few_layers_fit_twice_on_a_gpu(name):
    layers, gigabytes = FEW[name]
    sizes = tensor_shapes(SHAPES[name].with_layers(layers).full_config)
    assert 2 * sum(math.prod(size) for _, size in sizes) / 1e9 == pytest.approx(gigabytes, rel=0.01)


def test_a_checkpoint_is_read_back_from_its_shards(tmp_path, monkeypatch):
    monkeypatch.setattr(shapes, "SHARD_BYTES", 25 << 20)
    shape = SHAPES["llama-27m"].with_layers(2)
    folder = shapes.write(tmp_path / "model", shape)
    places = json.loads((folder / "model.safetensors.index.json").read_text())["weight_map"]
    assert len(set(places.values())) == 2
    drawn = set()
    for name, size in tensor_shapes(shape.full_config):
        with safe_open(folder / places[name], "pt") as file:
            tensor = file.get_tensor(name).float()
        assert tensor.shape == size
        if name.endswith("norm.weight"):
            assert (tensor == 1).all()
        else:
            assert tensor.std().item() == pytest.approx(shapes.SCALE, rel=0.02)
            drawn.add(tuple(tensor.flatten()[:8].tolist()))
    assert len(drawn) == 1 + 2 * 7  # no matrix repeats another


@pytest.mark.parametrize("family", ["qwen3_next", "deepseek_v3"])
def test_what_is_written_in_another_way_than_most(family, tmp_path):
    """Norms that the model adds 1 to lie around 0, and a few tensors are in float32."""
    shape = shapes.Shape(family, {"num_hidden_layers": 2})
    folder = shapes.write(tmp_path / "model", shape)
    index = json.loads((folder / "model.safetensors.index.json").read_text())
    centres, in_float32, nbytes = {}, {}, 0
    for name, _ in tensor_shapes(shape.full_config):
        with safe_open(folder / index["weight_map"][name], "pt") as file:
            tensor = file.get_tensor(name)
        nbytes += tensor.nbytes
        if name.endswith("norm.weight"):
            centres[name.removeprefix("model.layers.0.")] = set(tensor.tolist())
        elif tensor.dtype.itemsize == 4:
            in_float32[name.rpartition(".")[2]] = tensor.abs().max().item()
    assert nbytes == index["metadata"]["total_size"]
    if family == "qwen3_next":
        assert centres.pop("linear_attn.norm.weight") == {1.0}
        assert in_float32.keys() == {"A_log", "dt_bias"}
    else:
        assert in_float32.keys() == {"e_score_correction_bias"}
    assert set().union(*centres.values()) == {0.0 if family == "qwen3_next" else 1.0}
    assert all(0 < value < 0.2 for value in in_float32.values())


def test_what_is_written_in_fp8_has_the_spread_of_what_is_not(tmp_path):
    shape = SHAPES["qwen3-30b-a3b-fp8"].with_layers(1)
    shape = shapes.Shape(shape.family, shape.config | {"num_experts": 4, "vocab_size": 512})
    folder = shapes.write(tmp_path / "model", shape)
    with safe_open(folder / "model-00001-of-00001.safetensors", "pt") as file:
        held = set(file.keys())
        assert held == {name for name, _ in stored_tensors(shape.full_config)}
        weights = [name.removesuffix("_scale_inv") for name in held if name.endswith("_scale_inv")]
        assert len(weights) == 4 + 4 * 3
        for name in weights:
            codes, scales = file.get_tensor(name), file.get_tensor(f"{name}_scale_inv")
            assert (codes.dtype, scales.dtype) == (torch.float8_e4m3fn, torch.float32)
            assert dequantise(codes, scales, torch.float32).std().item() == pytest.approx(shapes.SCALE, rel=0.05)


def test_a_step_reads_half_as_much_in_fp8():
    half, whole = (read_by_step(SHAPES[name], 256, 0) for name in ("qwen3-30b-a3b-fp8", "qwen3-30b-a3b"))
    assert half == pytest.approx(whole / 2, rel=0.03)


def test_a_step_reads_each_weight_once_and_the_keys_and_values_of_every_stream():
    tied = SHAPES["llama-27m"]
    every_weight = 2 * sum(math.prod(size) for _, size in tensor_shapes(tied.full_config))
    assert read_by_step(tied, 1, 0) == every_weight
    entry = 2 * 2 * 8 * 2 * 64  # bytes, keys and values, layers, heads, their size
    assert read_by_step(tied, 4, 100) - every_weight == 400 * entry
    untied = SHAPES["qwen3-8b"].full_config
    embedding = 2 * untied["vocab_size"] * untied["hidden_size"]
    assert read_by_step(SHAPES["qwen3-8b"], 1, 0) == pytest.approx(2 * 8.19e9 - embedding, rel=0.01)


def test_a_step_of_a_mixture_reads_more_experts_with_more_streams():
    shape = SHAPES["qwen3-30b-a3b"]
    one, some, many = (read_by_step(shape, streams, 0) for streams in (1, 8, 256))
    embedding = 2 * 151_936 * 2048
    assert one == pytest.approx(2 * 3.35e9 - embedding, rel=0.02)  # 3.3 billion active
    assert one < some < many
    assert many == pytest.approx(2 * 30.5e9 - embedding, rel=0.01)


def test_a_step_of_latents_reads_576_numbers_of_each_token():
    shape = SHAPES["deepseek-v3"].with_layers(4)
    without = read_by_step(shape, 8, 0)
    assert read_by_step(shape, 8, 100) - without == 2 * 4 * 8 * 100 * 576
    attention = 7168 * 1536 + 1536 * 128 * 192 + 7168 * 576 + 512 * 128 * 256 + 128 * 128 * 7168
    dense, expert, head = 3 * 7168 * 18_432, 3 * 7168 * 2048, 7168 * 129_280
    by_hand = 2 * (4 * attention + dense + head + 3 * (7168 * 64 + expert * (1 + 64 * (1 - (7 / 8) ** 8))))
    assert without == pytest.approx(by_hand, rel=1e-4)  # but for the norms


def test_a_step_of_a_recurrence_reads_and_writes_the_states_of_every_stream():
    shape = SHAPES["qwen3-next"].with_layers(8)
    without, with_tokens = (read_by_step(shape, 8, context) for context in (0, 100))
    assert with_tokens - without == 8 * 100 * 2 * 2 * 2 * 2 * 256  # two layers, keys and values, two heads
    linear = 2048 * (12_288 + 64) + 4 * 8192 + 4096 * 2048
    attention = 2048 * (16 * 512 + 2 * 2 * 256) + 4096 * 2048
    sparse = 2048 * (512 + 1) + 3 * 2048 * 512 * (1 + 512 * (1 - (502 / 512) ** 8))
    states = 6 * (4 * 32 * 128 * 128 + 2 * 3 * 8192)
    by_hand = 2 * (6 * linear + 2 * attention + 8 * sparse + 2048 * 151_936) + 8 * 2 * states
    assert without == pytest.approx(by_hand, rel=1e-4)
