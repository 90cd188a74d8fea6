"""What a step of DeepSeek V4 takes of the CPU's memory is what the plan says, whichever part is the largest."""

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
from kernels.attention_workspace import workspace_tensors
from kernels.binding import bind
from kernels.catalogue import OPS
from kernels.linear import reference
from kernels.paged_attention.metadata import AttentionMetadata
from kernels.paged_attention.workspace import Step
from kernels.selection import chosen_names, explain
from tests.kernels.peak import Peak
from tests.tiny_deepseek_v4 import CONFIG

CPU = torch.device("cpu")
TOKENS = 512
SHAPES: dict[str, dict[str, Any]] = {
    "scores": {},
    "streams": {"hidden_size": 2048, "compress_ratios": [0, 128], "o_lora_rank": 64},
    "heads": {"num_attention_heads": 32},
    "chosen entries": {"compress_ratios": [4, 4], "index_topk": 100, "head_dim": 64},
    "an indexer": {"compress_ratios": [0, 4], "index_head_dim": 128},
    "wide heads": {"compress_ratios": [0, 128], "head_dim": 512, "num_attention_heads": 16, "hidden_size": 256},
    "experts": {"moe_intermediate_size": 2048, "hidden_size": 256},
}


@torch.inference_mode()
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["float32", "bfloat16"])
@pytest.mark.parametrize("name", SHAPES)
def test_a_step_takes_what_is_planned(tmp_path, name, dtype):
    """A prompt of 512 tokens, all of which go to the same experts."""
    described = CONFIG | {"num_hidden_layers": 2, "compress_ratios": [4, 128]} | SHAPES[name]
    (tmp_path / "config.json").write_text(json.dumps(described))
    config = read_config(tmp_path)
    context = selection_context(
        config, device="cpu", capability=None, dtype=str(dtype).removeprefix("torch."), kv_cache_dtype="",
        cuda_graphs=False, libraries={},
    )  # fmt: skip
    backends = chosen_names(explain(OPS, context))
    # The size of a weight in oneDNN's layout is not available.
    kernels = replace(bind(backends), linear=reference.linear, prepare_linear=lambda weight: weight)
    model = build(BuildContext(config, kernels, CPU, dtype, TOKENS))
    for key, destination in model.destinations().items():
        if key.endswith("tid2eid"):
            destination.copy_(torch.arange(2).expand(destination.shape))
        else:
            destination.zero_()
    caches = Caches(
        config.caches_of_layers, num_blocks=4, block_size=128, dtype=dtype, device=CPU, state_rows=2, state_dtype=dtype
    )
    every, starts = torch.arange(TOKENS), torch.tensor([0, TOKENS], dtype=torch.int32)
    table = torch.arange(4, dtype=torch.int32)[None]
    metadata = AttentionMetadata([TOKENS], [TOKENS], 0, starts, starts[1:], table, every)
    with Peak() as peak:
        hidden = model.forward(ForwardBatch(torch.zeros_like(every), every, metadata, torch.arange(1)), caches.layers)
        model.compute_logits(hidden[-1:])
    attention = workspace_tensors(backends, context, Step(TOKENS, 1, TOKENS))
    shape = StepShape(
        tokens=TOKENS, sequences=1, item=dtype.itemsize, fp8=False, backends=backends, attention=attention
    )
    most = max(moment.total for moment in moments(config, shape))
    assert 0.98 * peak.bytes <= most <= 1.2 * peak.bytes
