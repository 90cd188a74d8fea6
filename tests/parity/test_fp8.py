"""Weights and caches in 8 bits: weights against transformers with the same numbers multiplied out, caches against the
engine's own in full."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from appliance.checkpoint import selection
from appliance.checkpoint.config import read_config
from appliance.checkpoint.layout import expected_tensors, weight_bytes
from appliance.checkpoint.safetensors import read_index
from tests.parity.conftest import distribution, generate, greedy, make_engine, prompts, tokens
from tests.tiny import ALIGNED, FP8, aligned, block_fp8, write_checkpoint, write_plain_twin
from tests.tiny_forms import fuse_experts

# What no published list leaves out, left out here in one layer: whole modules, ends of names.
LIST = {"modules_to_not_convert": ["lm_head", "gate", "model.layers.0.self_attn", "model.layers.1.mlp.down_proj"]}
LATENT = aligned("deepseek_v3") | {"num_hidden_layers": 2, "v_head_dim": 64}
VARIANTS: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("llama", ALIGNED | {"attention_bias": True, "quantization_config": FP8}),
    "qwen3, some layers in full": ("qwen3", ALIGNED | {"quantization_config": FP8 | LIST}),
    "mixtral": ("mixtral", ALIGNED | {"quantization_config": FP8}),
    "qwen3_moe, some layers dense": (
        "qwen3_moe",
        ALIGNED | {"num_hidden_layers": 3, "mlp_only_layers": [1], "quantization_config": FP8},
    ),
    "minimax_m2": (
        "minimax_m2",
        ALIGNED | {"quantization_config": FP8 | {"fmt": "float8_e4m3fn", "modules_to_not_convert": ["gate"]}},
    ),
    "deepseek_v3": ("deepseek_v3", LATENT | {"quantization_config": FP8}),
    "deepseek_v3, apart, some in full": (
        "deepseek_v3",
        LATENT | {"q_lora_rank": 64, "quantization_config": FP8 | {"modules_to_not_convert": ["kv_b_proj"]}},
    ),
    "deepseek_v32": ("deepseek_v32", LATENT | {"index_head_dim": 128, "quantization_config": FP8}),
    "glm_moe_dsa": (
        "glm_moe_dsa",
        LATENT | {"index_head_dim": 64, "indexer_types": ["full", "shared"], "quantization_config": FP8},
    ),
    "qwen3_next": ("qwen3_next", aligned("qwen3_next") | {"quantization_config": block_fp8("qwen3_next")}),
    "qwen3_next, projections in full": (
        "qwen3_next",
        aligned("qwen3_next")
        | {
            "quantization_config": FP8
            | {"modules_to_not_convert": ["model.layers.0.linear_attn", "model.layers.1.mlp"]}
        },
    ),
    "qwen3_5": ("qwen3_5", aligned("qwen3_5") | {"quantization_config": block_fp8("qwen3_5")}),
    "qwen3_5_moe": ("qwen3_5_moe", aligned("qwen3_5_moe") | {"quantization_config": block_fp8("qwen3_5_moe")}),
}


@pytest.fixture(scope="module", params=VARIANTS, ids=str)
def checkpoints(request, tmp_path_factory):
    family, config = VARIANTS[request.param]
    folder = tmp_path_factory.mktemp("fp8")
    quantised = write_checkpoint(folder / "model", family, seed=3, scale=0.1, **config)
    return quantised, write_plain_twin(quantised, folder / "twin")


@pytest.fixture(params=["multiplied out", "kept"])
def storage(request, monkeypatch):
    """A CPU multiplies the weights out when it loads them; kept in FP8, as on a GPU, they must give the same."""
    if request.param == "kept":
        monkeypatch.setattr(selection, "KEEPS_FP8", (("cpu", "float32"),))
    return request.param


def test_block_scaled_weights_give_what_their_numbers_give(checkpoints, oracle, storage):
    quantised, twin = checkpoints
    engine, model = make_engine(quantised, max_num_batched_tokens=32), oracle(twin)
    assert engine.loaded.weight_bytes < (twin / "model.safetensors").stat().st_size * 0.7
    for prompt in prompts(4).values():
        with torch.inference_mode():
            expected = torch.log_softmax(model(torch.tensor([prompt])).logits[0, -1], -1)
        torch.testing.assert_close(distribution(engine, prompt), expected, atol=1e-4, rtol=0)
    assert ("fp8_linear" in engine.loaded.selection) == (storage == "kept")


def test_block_scaled_weights_give_equal_tokens_in_a_batch(checkpoints, oracle):
    quantised, twin = checkpoints
    asked = prompts(4)
    together = {name: tokens(outputs) for name, outputs in generate(make_engine(quantised), asked).items()}
    assert {len(written) for written in together.values()} == {64}
    assert together == greedy(oracle(twin), asked, together)


def test_fused_experts_in_fp8_are_the_same_model(tmp_path, storage):
    changes = aligned("qwen3_5_moe") | {"quantization_config": block_fp8("qwen3_5_moe")}
    apart = write_checkpoint(tmp_path / "model", "qwen3_5_moe", seed=3, scale=0.1, **changes)
    prompt = prompts(4)["r2"]
    expected = distribution(make_engine(apart), prompt)
    engine = make_engine(fuse_experts(apart))
    assert ("fp8_linear" in engine.loaded.selection) == (storage == "kept")
    torch.testing.assert_close(distribution(engine, prompt), expected, atol=0, rtol=0)


def test_the_plan_counts_the_weights_as_they_are_kept(checkpoints):
    """In FP8 the checkpoint's bytes, to the last, but for what is expanded there too; multiplied out its twin's."""
    quantised, twin = checkpoints
    config = read_config(quantised)
    whole = [name for name, tensor in expected_tensors(config).items() if tensor.expanded]
    differ = _bytes(twin, whole) - _bytes(quantised, whole)
    assert weight_bytes(config, 4, keep_fp8=True) == read_index(quantised).total_bytes + differ
    assert weight_bytes(config, 4, keep_fp8=False) == read_index(twin).total_bytes
    assert weight_bytes(read_config(twin), 4, keep_fp8=True) == read_index(twin).total_bytes


def _bytes(folder: Path, names: list[str]) -> int:
    entries = read_index(folder).tensors
    return sum(entries[name].end - entries[name].begin for name in names if name in entries)


@pytest.mark.parametrize("family", ["llama", "mixtral"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_cache_in_8_bits_stays_near_the_full_one(tmp_path, family, dtype):
    """Over chunks, blocks that are shared, and decoding; and it takes a quarter or half of the memory."""
    checkpoint = write_checkpoint(tmp_path / "model", family, dtype=dtype, seed=6, scale=0.1)
    full = make_engine(checkpoint, dtype=dtype, max_num_batched_tokens=32)
    small = make_engine(checkpoint, dtype=dtype, max_num_batched_tokens=32, kv_cache_dtype="float8_e4m3fn")
    assert small.loaded.cache_bytes * (4 if dtype == "float32" else 2) == full.loaded.cache_bytes
    for prompt in [*prompts(4).values(), *prompts(4).values()]:
        near, exact = distribution(small, prompt), distribution(full, prompt)
        assert (near - exact).abs().mean() < 0.05
    asked = prompts(6)
    together = generate(small, asked)
    assert tokens(generate(small, {"r3": asked["r3"]})["r3"]) == tokens(together["r3"])
