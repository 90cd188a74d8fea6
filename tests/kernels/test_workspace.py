"""What a step takes beside weights and cache stays within the memory plan: measured by the sizes of the tensors that
kernels' faces make, with nothing launched."""

from __future__ import annotations

import importlib
import json
from itertools import pairwise
from typing import Any

import pytest
import torch

from appliance.checkpoint.config import read_config
from appliance.checkpoint.drafting import with_head
from appliance.checkpoint.memory.step import StepShape, moments
from appliance.checkpoint.model_config import ModelConfig
from appliance.checkpoint.selection import selection_context
from appliance.engine.cache import Caches
from appliance.models.base import BuildContext
from appliance.models.batch import ForwardBatch
from appliance.models.registry import build
from kernels.attention_workspace import workspace_tensors as attention_workspace
from kernels.binding import bind
from kernels.catalogue import OPS, PAGED_ATTENTION
from kernels.context import Context
from kernels.launch import launching_for
from kernels.paged_attention import reference, triton, workspace
from kernels.paged_attention.cases import Shape, batch
from kernels.paged_attention.metadata import AttentionMetadata
from kernels.paged_attention.workspace import Step, workspace_bytes
from kernels.selection import chosen_names, explain
from tests.gpu.bench.deepseek_v4 import FLASH
from tests.kernels.peak import Peak
from tests.tiny import BASE, FAMILIES, block_fp8

CPU, META = torch.device("cpu"), torch.device("meta")
CACHES = {"bfloat16": torch.bfloat16, "float8_e4m3fn": torch.float8_e4m3fn}
FACES = (
    "causal_conv.triton", "compressed_attention.triton", "compressor.triton", "delta_rule.triton", "embedding.triton",
    "fp8_linear.triton", "fused_moe.sort",
    "fused_moe.triton", "gated_activation.triton", "gated_norm.triton", "index_cache.triton", "index_query.triton",
    "indexer.triton", "mhc_head.triton", "mhc_post.triton", "mhc_pre.triton", "moe_routing.softplus",
    "window_entries.triton", "latent_cache.triton", "linear.triton", "mla_attention.triton", "moe_routing.triton",
    "paged_attention.triton", "rms_norm.triton", "rotary_cache.triton", "sparse_mla.triton",
)  # fmt: skip

# As published, but for the number of layers: a step takes no more with more of them.
FEW_LAYERS = {"num_hidden_layers": 2, "max_position_embeddings": 32768}
LLAMA_8B = {
    "vocab_size": 128256, "hidden_size": 4096, "intermediate_size": 14336, "num_attention_heads": 32,
    "num_key_value_heads": 8, "head_dim": 128,
}  # fmt: skip
HYBRID = {
    "num_attention_heads": 16, "num_key_value_heads": 2, "head_dim": 256, "linear_num_key_heads": 16,
    "linear_num_value_heads": 32, "linear_key_head_dim": 128, "linear_value_head_dim": 128,
}  # fmt: skip
DEEPSEEK = {
    "vocab_size": 129280, "hidden_size": 7168, "intermediate_size": 18432, "num_attention_heads": 128,
    "num_key_value_heads": 128, "q_lora_rank": 1536, "kv_lora_rank": 512, "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64, "v_head_dim": 128, "n_routed_experts": 256, "num_experts_per_tok": 8, "n_group": 8,
    "topk_group": 4, "moe_intermediate_size": 2048,
}  # fmt: skip
MODELS: dict[str, dict[str, Any]] = {
    "llama": LLAMA_8B,
    "mixtral": LLAMA_8B | {"vocab_size": 32000, "num_local_experts": 8},
    "qwen3_moe": LLAMA_8B | {
        "vocab_size": 151936, "hidden_size": 2048, "intermediate_size": 6144, "num_key_value_heads": 4,
        "num_experts": 128, "num_experts_per_tok": 8, "moe_intermediate_size": 768,
    },
    "minimax_m2": LLAMA_8B | {
        "vocab_size": 200064, "hidden_size": 3072, "intermediate_size": 1536, "num_attention_heads": 48,
        "num_local_experts": 256, "num_experts_per_tok": 8, "rotary_dim": 64,
    },
    "deepseek_v3": DEEPSEEK,
    "deepseek_v32": DEEPSEEK | {"index_topk": 2048, "index_head_dim": 128},
    "glm_moe_dsa": DEEPSEEK | {
        "vocab_size": 154880, "hidden_size": 6144, "intermediate_size": 12288, "num_attention_heads": 64,
        "num_key_value_heads": 64, "q_lora_rank": 2048, "qk_nope_head_dim": 192, "v_head_dim": 256, "n_group": 1,
        "topk_group": 1, "index_topk": 2048, "index_head_dim": 128, "index_n_heads": 32,
        "indexer_types": ["full", "shared"],
    },
    "qwen3_next": HYBRID | {
        "vocab_size": 151936, "hidden_size": 2048, "intermediate_size": 5120, "num_experts": 512,
        "num_experts_per_tok": 10, "moe_intermediate_size": 512, "shared_expert_intermediate_size": 512,
    },
    "qwen3_5": HYBRID | {
        "vocab_size": 248320, "hidden_size": 5120, "intermediate_size": 17408, "num_attention_heads": 24,
        "num_key_value_heads": 4, "linear_num_value_heads": 48,
    },
}  # fmt: skip


@pytest.fixture
def _nothing_is_launched(monkeypatch):
    for face in FACES:
        monkeypatch.setattr(importlib.import_module(f"kernels.{face}"), "launch", lambda *_: None)


def test_every_backend_of_the_engine_says_what_it_works_in():
    assert set(workspace._BY_BACKEND) == {backend.name for backend in PAGED_ATTENTION.of("native")}


@pytest.mark.parametrize("backend", workspace._BY_BACKEND)
@pytest.mark.parametrize("cache", CACHES)
def test_a_workspace_never_falls_as_contexts_grow(backend, cache):
    """The longest context that fits is searched for by halves."""
    context = Context("cuda", (9, 0), "bfloat16", 128, 32, 8, kv_cache_dtype=cache)
    lengths = (1, 100, 255, 256, 257, 4096, 32768, 32769, 131072, 1 << 20)
    found = [workspace_bytes(backend, context, Step(2048, 256, length)) for length in lengths]
    assert found == sorted(found)


@pytest.mark.parametrize("cache", CACHES)
@pytest.mark.parametrize(
    ("query_lens", "context_lens"),
    [((1,) * 40, (4000,) * 40), ((1500,), (6000,)), ((1, 1, 700), (30, 5000, 6000))],
    ids=["decodes", "chunk", "mixed"],
)
def test_torch_s_attention_stays_within_its_workspace(query_lens, context_lens, cache):
    """Keys and values out of their blocks, and masks; the result and the queries' other layout are activations."""
    shape = Shape(query_lens, context_lens, heads=4, kv_heads=2, head_dim=64)
    query, *caches, metadata = batch(shape, torch.bfloat16, CACHES[cache], CPU)
    context = Context("cpu", None, "bfloat16", 64, 4, 2, kv_cache_dtype=cache)
    with Peak() as peak:
        reference.paged_attention(query, caches[0], caches[1], metadata, 0.1)
    step = Step(sum(query_lens), len(query_lens), max(context_lens))
    assert peak.bytes <= workspace_bytes("torch", context, step) + 4 * query.nbytes


@pytest.mark.usefixtures("_nothing_is_launched")
@pytest.mark.parametrize("arch", [80, 90])
@pytest.mark.parametrize("cache", CACHES)
@pytest.mark.parametrize(
    ("query_lens", "context_lens"),
    [((1,) * 256, (131072,) * 256), ((1,) * 255 + (2048,), (300,) * 255 + (131072,)), ((512,) * 4, (8192,) * 4)],
    ids=["decodes", "mixed", "prefills"],
)
def test_triton_s_attention_stays_within_its_workspace(query_lens, context_lens, cache, arch):
    """Parts of decodes, however many sequences and however long; prefills whose pages are copied together."""
    query = torch.empty(sum(query_lens), 32, 128, dtype=torch.bfloat16, device=META)
    caches = torch.empty(2, 1 << 16, 16, 8, 128, dtype=CACHES[cache], device=META)
    metadata = geometry(query_lens, context_lens)
    with launching_for(arch), Peak() as peak:
        triton.paged_attention(query, caches[0], caches[1], metadata, 0.1)
    context = Context("cuda", divmod(arch, 10), "bfloat16", 128, 32, 8, kv_cache_dtype=cache)
    step = Step(sum(query_lens), len(query_lens), max(context_lens))
    result = query.nbytes
    assert peak.bytes - result <= workspace_bytes("triton", context, step)


def plan_of(config: ModelConfig, arch: int, step: Step, *, fp8: bool) -> tuple[dict[str, str], int]:
    """The backends that are chosen for a GPU, and the bytes that the plan has for a step of them."""
    context = selection_context(
        config, device="cuda", capability=divmod(arch, 10), dtype="bfloat16", kv_cache_dtype="bfloat16",
        cuda_graphs=False, libraries={"triton": "3"},
    )  # fmt: skip
    names = chosen_names(explain(OPS, context))
    shape = StepShape(
        tokens=step.num_tokens, sequences=step.num_seqs, item=2, fp8=fp8, backends=names,
        attention=attention_workspace(names, context, step),
    )  # fmt: skip
    return names, max(moment.total for moment in moments(config, shape))


@pytest.mark.usefixtures("_nothing_is_launched")
@pytest.mark.parametrize("quantised", [False, True], ids=["bf16", "fp8"])
@pytest.mark.parametrize("arch", [80, 90])
@pytest.mark.parametrize(("family", "heads"), [*((family, 0) for family in MODELS), ("deepseek_v3", 1)])
def test_a_step_stays_within_the_plan(tmp_path, family, heads, arch, quantised):
    """Layers, experts and head, for as many tokens as a step may have: of one prompt, and beside others that decode.
    A head for drafts works while hidden states and logits are still there."""
    described = BASE | FAMILIES[family] | MODELS[family] | FEW_LAYERS | {"num_nextn_predict_layers": heads}
    if quantised:
        described["quantization_config"] = block_fp8(family)
    (tmp_path / "config.json").write_text(json.dumps(described))
    config = with_head(read_config(tmp_path))
    length, tokens, seqs = 32768, 2048, 256
    names, planned = plan_of(config, arch, Step(tokens, seqs, length), fp8=quantised)
    model = build(BuildContext(config, bind(names), META, torch.bfloat16, length, quantised))
    caches = Caches(
        config.caches_of_layers, num_blocks=4096, block_size=16, dtype=torch.bfloat16, device=META, state_rows=seqs + 1
    )
    most = 0
    for query_lens, context_lens in (((2048,), (32768,)), ((1,) * 255 + (1793,), (2000,) * 255 + (32768,))):
        ids, rows = (torch.empty(n, dtype=torch.int64, device=META) for n in (sum(query_lens), len(query_lens)))
        step = ForwardBatch(ids, ids, geometry(query_lens, context_lens), torch.arange(len(query_lens)))
        with torch.inference_mode(), launching_for(arch), Peak() as peak:
            hidden = model.forward(step, caches.layers)
            logits = model.compute_logits(hidden[rows])
            if model.drafter is not None:
                found = model.drafter.forward(step, hidden, caches.layers[-1])
                model.compute_logits(found[rows], out=logits)
                del found
            del hidden, logits
        most = max(most, peak.bytes)
    sampling = seqs * config.vocab_size * 8  # logits and their log probabilities, in float32
    assert most <= planned <= 1.3 * max(most, sampling)


@pytest.mark.usefixtures("_nothing_is_launched")
@pytest.mark.parametrize("experts", ["fp4", "fp8"])
@pytest.mark.parametrize(("arch", "heads"), [(80, 0), (90, 0), (90, 1)])
def test_a_step_of_deepseek_v4_stays_within_the_plan(tmp_path, arch, heads, experts):
    """Flash with a layer of each kind, and with its head."""
    described = FLASH | {"num_hidden_layers": 3, "compress_ratios": [0, 4, 128], "expert_dtype": experts}
    (tmp_path / "config.json").write_text(json.dumps(described | {"num_nextn_predict_layers": heads}))
    config = with_head(read_config(tmp_path))
    length, tokens, seqs = 32768, 2048, 256
    names, planned = plan_of(config, arch, Step(tokens, seqs, length), fp8=True)
    model = build(BuildContext(config, bind(names), META, torch.bfloat16, length, keep_fp8=True))
    caches = Caches(
        config.caches_of_layers, num_blocks=300, block_size=256, dtype=torch.bfloat16, device=META,
        state_rows=seqs + 1, state_dtype=torch.bfloat16,
    )  # fmt: skip
    most = 0
    for query_lens, context_lens in (((2048,), (32768,)), ((1,) * 255 + (1793,), (2000,) * 255 + (32768,))):
        ids, rows = (torch.empty(n, dtype=torch.int64, device=META) for n in (sum(query_lens), len(query_lens)))
        step = ForwardBatch(ids, ids, geometry(query_lens, context_lens), torch.empty_like(rows))
        with torch.inference_mode(), launching_for(arch), Peak() as peak:
            hidden = model.forward(step, caches.layers)
            logits = model.compute_logits(hidden[rows])
            if model.drafter is not None:
                found = model.drafter.forward(step, step.carried.for_head, caches.layers[-1])
                model.compute_logits(found[rows], out=logits)
                del found
            del hidden, logits, step
        most = max(most, peak.bytes)
    assert most <= planned <= 2 * most, (most, planned)


# Where chunks of long prompts end.
LENGTHS = 16_384, 65_536, 131_072, 1_048_576


@pytest.mark.usefixtures("_nothing_is_launched")
@pytest.mark.parametrize("arch", [80, 90])
@pytest.mark.parametrize("family", ["llama", "qwen3_next", "deepseek_v3", "deepseek_v32", "glm_moe_dsa", "deepseek_v4"])
def test_every_chunk_of_a_prompt_of_131072_tokens_stays_within_the_plan(tmp_path, family, arch):
    """And of one eight times as long. What they take grows no faster than the context."""
    layers = {"num_hidden_layers": 2, "max_position_embeddings": LENGTHS[-1]}
    described = FLASH | layers | {"num_hidden_layers": 3, "compress_ratios": [0, 4, 128]}
    if family != "deepseek_v4":
        described = BASE | FAMILIES[family] | MODELS[family] | layers
    (tmp_path / "config.json").write_text(json.dumps(described))
    config, tokens = read_config(tmp_path), 2048
    fp8 = config.compressed_attention is not None
    names, _ = plan_of(config, arch, Step(tokens, 1, LENGTHS[-1]), fp8=fp8)
    model = build(BuildContext(config, bind(names), META, torch.bfloat16, LENGTHS[-1], fp8))
    block_size = max(config.block_multiple, 16)
    caches = Caches(
        config.caches_of_layers, num_blocks=LENGTHS[-1] // block_size, block_size=block_size, dtype=torch.bfloat16,
        device=META, state_rows=2, state_dtype=torch.bfloat16,
    )  # fmt: skip
    taken = []
    for length in LENGTHS:
        ids = torch.empty(tokens, dtype=torch.int64, device=META)
        step = ForwardBatch(ids, ids, geometry((tokens,), (length,)), torch.empty_like(ids[:1]))
        with torch.inference_mode(), launching_for(arch), Peak() as peak:
            model.compute_logits(model.forward(step, caches.layers)[-1:])
        taken.append(peak.bytes)
        _, planned = plan_of(config, arch, Step(tokens, 1, length), fp8=fp8)
        assert taken[-1] <= planned <= 2 * taken[-1]
    for (short, few), (long, many) in pairwise(zip(LENGTHS, taken, strict=True)):
        assert few <= many <= few * long // short


def geometry(query_lens: tuple[int, ...], context_lens: tuple[int, ...]) -> AttentionMetadata:
    """What a face needs to choose and to allocate."""

    def numbers(*shape: int, dtype: torch.dtype = torch.int32) -> torch.Tensor:
        return torch.empty(shape, dtype=dtype, device=META)

    seqs, tokens = len(query_lens), sum(query_lens)
    return AttentionMetadata(
        query_lens=list(query_lens),
        context_lens=list(context_lens),
        num_decodes=query_lens.count(1),
        query_start_loc=numbers(seqs + 1),
        seq_lens=numbers(seqs),
        block_tables=numbers(seqs, -(-max(context_lens) // 16)),
        slot_mapping=numbers(tokens, dtype=torch.int64),
    )
