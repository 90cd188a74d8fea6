"""What the plan counts for a step on a CPU is what its tensors take: no less, and hardly more."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
import torch

from appliance.checkpoint.config import read_config
from appliance.checkpoint.memory.step import StepShape, moments
from appliance.checkpoint.selection import selection_context
from appliance.engine.cache import Caches
from appliance.models.base import BuildContext
from appliance.models.batch import ForwardBatch
from appliance.models.registry import build
from kernels.attention_workspace import workspace_tensors as attention_workspace
from kernels.binding import bind
from kernels.catalogue import OPS
from kernels.linear import reference
from kernels.paged_attention.metadata import AttentionMetadata
from kernels.paged_attention.workspace import Step
from kernels.selection import chosen_names, explain
from tests.kernels.peak import Peak
from tests.tiny import BASE, FAMILIES
from tests.tiny_deepseek_v4 import CONFIG as V4

CPU = torch.device("cpu")
ATTENTION = {"num_attention_heads": 16, "num_key_value_heads": 4, "head_dim": 64}
LATENT = {
    "num_key_value_heads": 16, "q_lora_rank": 256, "kv_lora_rank": 256, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64,
    "v_head_dim": 128, "num_hidden_layers": 2,
}  # fmt: skip
INDEXER = {"index_n_heads": 16, "index_head_dim": 128, "index_topk": 128}
SHAPES: dict[str, tuple[str, dict[str, Any]]] = {
    "square layers": ("llama", {"hidden_size": 512, "intermediate_size": 512}),
    "a wide feed-forward layer": ("llama", {"hidden_size": 512, "intermediate_size": 2048}),
    "many heads": ("llama", {"hidden_size": 256, "intermediate_size": 256, "num_attention_heads": 32}),
    "normed heads": ("qwen3", {"hidden_size": 256, "intermediate_size": 256}),
    "experts": ("qwen3_moe", {"hidden_size": 256, "moe_intermediate_size": 512, "num_experts": 16}),
    "small experts": ("mixtral", {"hidden_size": 512, "intermediate_size": 128}),
    "latents": ("deepseek_v3", LATENT | {"hidden_size": 512, "first_k_dense_replace": 2}),
    "latents, queries from the hidden state": (
        "deepseek_v3",
        LATENT | {"hidden_size": 512, "first_k_dense_replace": 2, "q_lora_rank": None, "intermediate_size": 1024},
    ),
    "shared experts": (
        "deepseek_v3",
        LATENT
        | {
            "hidden_size": 512,
            "num_attention_heads": 4,
            "num_key_value_heads": 4,
            "n_shared_experts": 16,
            "moe_intermediate_size": 256,
        },
    ),
    "sparse attention": ("deepseek_v32", LATENT | INDEXER | {"hidden_size": 512, "first_k_dense_replace": 2}),
    "sparse attention, a wide indexer": (
        "deepseek_v32",
        LATENT | INDEXER | {"hidden_size": 512, "first_k_dense_replace": 2, "index_n_heads": 64},
    ),
    "sparse attention, few heads, a short choice": (
        "glm_moe_dsa",
        LATENT
        | INDEXER
        | {
            "hidden_size": 512,
            "first_k_dense_replace": 2,
            "index_n_heads": 4,
            "index_topk": 16,
            "indexer_types": ["full", "shared"],
        },
    ),
    "gated heads": ("qwen3_5", {"hidden_size": 256, "intermediate_size": 256, "full_attention_interval": 1}),
    "gated delta": ("qwen3_5", {"hidden_size": 512, "intermediate_size": 512, "linear_key_head_dim": 64}),
    "gated delta, wide values": (
        "qwen3_next",
        {"hidden_size": 256, "linear_num_value_heads": 8, "linear_key_head_dim": 32, "linear_value_head_dim": 128},
    ),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["float32", "bfloat16"])
@pytest.mark.parametrize("name", SHAPES)
def test_a_step_takes_what_is_planned(tmp_path, name, dtype):
    """A prompt of 512 tokens, all of which the router sends to the same experts."""
    family, shape = SHAPES[name]
    described = BASE | FAMILIES[family] | ATTENTION | {"num_hidden_layers": 2} | shape
    (tmp_path / "config.json").write_text(json.dumps(described))
    config, tokens = read_config(tmp_path), 512
    context = selection_context(
        config, device="cpu", capability=None, dtype=str(dtype).removeprefix("torch."), kv_cache_dtype="",
        cuda_graphs=False, libraries={},
    )  # fmt: skip
    backends = chosen_names(explain(OPS, context))
    # The size of a weight in oneDNN's layout is not available.
    kernels = replace(
        bind(backends),
        linear=reference.linear,
        prepare_linear=lambda weight: weight,
    )
    with torch.inference_mode():
        model = build(BuildContext(config, kernels, CPU, dtype, tokens))
        for destination in model.destinations().values():
            destination.zero_()
        caches = Caches(
            config.caches_of_layers, num_blocks=tokens // 16, block_size=16, dtype=dtype, device=CPU, state_rows=2,
            state_dtype=dtype,
        )  # fmt: skip
        every = torch.arange(tokens)
        metadata = AttentionMetadata(
            query_lens=[tokens],
            context_lens=[tokens],
            num_decodes=0,
            query_start_loc=torch.tensor([0, tokens], dtype=torch.int32),
            seq_lens=torch.tensor([tokens], dtype=torch.int32),
            block_tables=torch.arange(tokens // 16, dtype=torch.int32)[None],
            slot_mapping=every,
        )
        with Peak() as peak:
            hidden = model.forward(
                ForwardBatch(torch.zeros_like(every), every, metadata, torch.arange(len(metadata.query_lens))),
                caches.layers,
            )
            model.compute_logits(hidden[-1:])
    planned = moments(
        config,
        StepShape(
            tokens=tokens,
            sequences=1,
            item=dtype.itemsize,
            fp8=False,
            backends=backends,
            attention=attention_workspace(backends, context, Step(tokens, 1, tokens)),
        ),
    )
    most = max(moment.total for moment in planned)
    assert 0.99 * peak.bytes <= most <= 1.2 * peak.bytes


LONG = 131_072
PROMPTS: dict[str, tuple[str, dict[str, Any]]] = {
    "keys and values": ("llama", {}),
    "expanded latents": ("deepseek_v3", LATENT | {"first_k_dense_replace": 2, "kv_lora_rank": 64,
                                                "num_attention_heads": 4, "num_key_value_heads": 4}),
    "chosen latents": ("deepseek_v32", LATENT | INDEXER | {"first_k_dense_replace": 2, "index_n_heads": 4}),
    "shared choice": ("glm_moe_dsa", LATENT | INDEXER | {"first_k_dense_replace": 2, "index_n_heads": 4,
                                                         "index_topk": 16, "indexer_types": ["full", "shared"]}),
    "compressed entries": ("deepseek_v4", {}),
}  # fmt: skip


@pytest.mark.parametrize("name", PROMPTS)
def test_the_chunks_of_a_prompt_of_131072_tokens_take_what_is_planned(tmp_path, name):
    """Of 48 tokens each, which end at an eighth of the prompt, at half of it and at its end. What they take grows no
    faster than the context."""
    family, shape = PROMPTS[name]
    described = BASE | FAMILIES.get(family, {}) | ATTENTION | {"num_hidden_layers": 2} | shape
    if family == "deepseek_v4":
        described = V4 | {"num_hidden_layers": 2, "compress_ratios": [4, 128]}
    (tmp_path / "config.json").write_text(json.dumps(described | {"max_position_embeddings": LONG}))
    config, tokens = read_config(tmp_path), 48
    context = selection_context(
        config, device="cpu", capability=None, dtype="float32", kv_cache_dtype="", cuda_graphs=False, libraries={}
    )
    backends = chosen_names(explain(OPS, context))
    kernels = replace(bind(backends), linear=reference.linear, prepare_linear=lambda weight: weight)
    block_size = max(config.block_multiple, 16)
    blocks = torch.arange(LONG // block_size, dtype=torch.int32)[None]
    taken = []
    with torch.inference_mode():
        model = build(BuildContext(config, kernels, CPU, torch.float32, LONG))
        for destination in model.destinations().values():
            destination.zero_()
        caches = Caches(
            config.caches_of_layers, num_blocks=blocks.numel(), block_size=block_size, dtype=torch.float32, device=CPU,
            state_rows=2,
        )  # fmt: skip
        for length in (LONG // 8, LONG // 2, LONG):
            positions = torch.arange(length - tokens, length)
            starts, lens = (torch.tensor(each, dtype=torch.int32) for each in ([0, tokens], [length]))
            metadata = AttentionMetadata([tokens], [length], 0, starts, lens, blocks, positions)
            batch = ForwardBatch(torch.zeros_like(positions), positions, metadata, torch.zeros(1, dtype=torch.int64))
            with Peak() as peak:
                model.compute_logits(model.forward(batch, caches.layers)[-1:])
            taken.append(peak.bytes)
            attention = attention_workspace(backends, context, Step(tokens, 1, length))
            step = StepShape(tokens=tokens, sequences=1, item=4, fp8=False, backends=backends, attention=attention)
            assert 0.99 * peak.bytes <= max(moment.total for moment in moments(config, step)) <= 1.6 * peak.bytes
    assert taken[1] <= 4 * taken[0]
    assert taken[2] <= 2 * taken[1]
