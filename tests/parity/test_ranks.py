"""Several ranks give the tokens of one, for every family, however its tensors are cut."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from appliance.checkpoint.config import read_config
from appliance.checkpoint.layout import expected_tensors, weight_bytes
from appliance.checkpoint.sharding import sharded, shards
from appliance.engine.engine import Engine
from tests.parity.conftest import distribution, generate, make_engine, prompts, tokens
from tests.parity.gloo_rank import greedy_tokens
from tests.parity.ranks import together
from tests.tiny import FAMILIES, FP8, aligned, block_fp8, write_checkpoint

ROOT = Path(__file__).parents[2]
COPIES = {"num_snapshots": 8}
# Ranks that share key-value heads, vocabularies that do not divide, biases that count once, norms over all heads.
VARIANTS: dict[str, tuple[str, int, dict[str, Any]]] = {
    **{family: (family, 2, {}) for family in FAMILIES},
    "llama, more ranks than kv heads, uneven vocabulary, biases": (
        "llama", 4, {"attention_bias": True, "mlp_bias": True, "vocab_size": 521, "tie_word_embeddings": True},
    ),
    "minimax_m2, more ranks than kv heads": ("minimax_m2", 4, {}),
    "deepseek_v3, queries from the hidden state, biases": (
        "deepseek_v3", 4, {"q_lora_rank": None, "attention_bias": True, "n_shared_experts": 2},
    ),
    "qwen3_5, several value heads to each key": ("qwen3_5", 2, {"linear_num_value_heads": 8, "vocab_size": 513}),
}  # fmt: skip


@pytest.fixture(scope="module", params=VARIANTS, ids=str)
def shared(request, tmp_path_factory):
    family, ranks, config = VARIANTS[request.param]
    return write_checkpoint(tmp_path_factory.mktemp("ranks") / "model", family, seed=3, **config), ranks


def test_ranks_give_the_tokens_of_one(shared):
    """Greedy and sampled, batched, in chunks, preempted and with prefix hits."""
    folder, ranks = shared
    first, second = prompts(5), prompts(4, (40, 70))
    limits = {"num_blocks": 26, "max_num_batched_tokens": 40, **COPIES}

    def run(engine: Engine) -> list[dict[str, list[int]]]:
        found = [
            generate(engine, first, max_tokens=32),
            generate(engine, second, max_tokens=32),
            generate(engine, second, max_tokens=16, temperature=0.8, top_p=0.9, seed=11),
        ]
        assert engine.scheduler.prompt_tokens_cached > 0
        return [{name: tokens(outputs) for name, outputs in each.items()} for each in found]

    expected = run(make_engine(folder, **limits))
    assert together(ranks, lambda group: run(make_engine(folder, group, **limits))) == [expected] * ranks


def test_logits_are_those_of_one_rank(shared):
    folder, ranks = shared
    size = read_config(folder).vocab_size
    if size != 512:
        pytest.skip("`distribution` reads 512")
    prompt = prompts(4)["r3"]
    expected = distribution(make_engine(folder), prompt)
    for found in together(ranks, lambda group: distribution(make_engine(folder, group), prompt)):
        torch.testing.assert_close(found, expected, atol=1e-4, rtol=0)


@pytest.mark.parametrize("family", ["llama", "qwen3_moe", "deepseek_v3", "qwen3_next", "qwen3_5_moe"])
def test_weights_in_fp8_are_cut_between_their_blocks(tmp_path, family):
    sizes = {"num_attention_heads": 4, "num_key_value_heads": 4, "moe_intermediate_size": 256, "hidden_size": 256,
             "shared_expert_intermediate_size": 256}  # fmt: skip
    config = aligned(family) | sizes | {"head_dim": 128, "quantization_config": block_fp8(family)}
    folder = write_checkpoint(tmp_path / "model", family, seed=3, scale=0.1, **config)
    asked = prompts(3)

    def run(engine: Engine) -> dict[str, list[int]]:
        return {name: tokens(outputs) for name, outputs in generate(engine, asked, max_tokens=16).items()}

    expected = run(make_engine(folder))
    assert together(2, lambda group: run(make_engine(folder, group))) == [expected] * 2


def test_the_ranks_tensors_are_what_the_plan_counts(shared):
    """Every shard has the shape that the family gives the rank's model, and the plan counts the bytes of those."""
    folder, ranks = shared
    whole = read_config(folder)
    local = sharded(whole, ranks)
    total = 0
    of_rank = [shards(whole, rank, ranks) for rank in range(ranks)]
    for name, expected in expected_tensors(local).items():
        total += torch.Size(expected.shape).numel() * 4
        for cut in (each[name] for each in of_rank if name in each):
            taken = sum(map(len, cut.ranges))
            assert taken in (expected.shape[cut.dim], 0) or name.endswith(("embed_tokens.weight", "lm_head.weight"))
    assert weight_bytes(local, 4, keep_fp8=False) == total


def test_two_gloo_processes_give_the_tokens_of_one(tmp_path):
    """For each kind of layer, and weights in FP8, in one pair of processes."""
    fp8 = aligned("qwen3_moe") | {"moe_intermediate_size": 256, "head_dim": 128, "quantization_config": FP8}
    asked = {"llama": {}, "qwen3_moe": fp8, "deepseek_v3": {}, "qwen3_next": {}}
    folders = [write_checkpoint(tmp_path / family, family, seed=3, **config) for family, config in asked.items()]
    command = [sys.executable, "-m", "tests.parity.gloo_rank", str(tmp_path / "meet")]
    started = [
        subprocess.Popen([*command, str(rank), *map(str, folders)], stdout=subprocess.PIPE, cwd=ROOT) for rank in (0, 1)
    ]
    said = [json.loads(process.communicate(timeout=120)[0]) for process in started]
    assert [process.returncode for process in started] == [0, 0]
    assert said == [[greedy_tokens(make_engine(folder, **COPIES)) for folder in folders]] * 2
