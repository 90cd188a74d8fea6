"""The models that benchmarks make: sizes, and what a step of theirs reads."""

from __future__ import annotations

import json
import math

import pytest
from safetensors import safe_open

from tests.bench import shapes
from tests.bench.shapes import SHAPES, read_by_step
from tests.tiny import tensor_shapes

BILLIONS = {"llama-27m": 0.0249, "tinyllama-1.1b": 1.1, "qwen3-8b": 8.19, "qwen3-30b-a3b": 30.5}


@pytest.mark.parametrize("name", SHAPES)
def test_a_shape_has_the_parameters_of_the_model_that_it_is_named_for(name):
    parameters = sum(math.prod(size) for _, size in tensor_shapes(SHAPES[name].full_config))
    assert parameters / 1e9 == pytest.approx(BILLIONS[name], rel=0.02)


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
