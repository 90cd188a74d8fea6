"""Known faults: each is met in the scenario that its source reports, and chosen round; a way out that the source names
is taken."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from kernels import faults
from kernels.catalogue import OPS
from kernels.context import CastSummary, Context
from kernels.moe_routing import Routing
from kernels.moe_routing.reference import moe_routing
from kernels.selection import BackendRefusedError, Choice, Fault, explain

LIBRARIES = {"flashinfer": "0.6.13", "deep_gemm": "2.1.1"}
H100 = Context("cuda", (9, 0), "bfloat16", head_dim=128, cuda_graphs=True, libraries=LIBRARIES, engine="vllm")
B200, RTX_PRO_6000, GB10 = (replace(H100, capability=capability) for capability in ((10, 0), (12, 0), (12, 1)))
A100, RTX_3090, L40S = (replace(H100, capability=capability) for capability in ((8, 0), (8, 6), (8, 9)))
QWEN3_NEXT: dict[str, Any] = {"num_experts": 512, "experts_per_token": 10, "gated_delta_head_dim": 128, "head_dim": 256}
FP8: dict[str, Any] = {"fp8_blocks": (128, 128)}


def chosen(context: Context, **backends: str) -> dict[str, Choice]:
    """By op. Raises the first refusal."""
    choices = {}
    for found in explain(OPS, context, {name.replace("_", "-"): backend for name, backend in backends.items()}):
        if found.chosen is None:
            assert found.refusal is not None
            raise found.refusal
        choices[found.op.name] = Choice(found.op.name, found.chosen, found.requested, found.verdicts)
    return choices


def reasons(choice: Choice) -> dict[str, tuple[str, str | None]]:
    return {verdict.backend: (verdict.reason, verdict.source) for verdict in choice.verdicts if not verdict.usable}


def blamed(choice: Choice, backend: str) -> Fault:
    """The fault that the verdict on a backend goes back to."""
    reason, source = reasons(choice)[backend]
    return next(fault for fault in faults.FAULTS if (fault.reason, fault.source) == (reason, source))


def test_every_fault_has_a_source_that_can_be_read_and_a_name_of_its_own():
    assert len({fault.name for fault in faults.FAULTS}) == len(faults.FAULTS)
    for fault in faults.FAULTS:
        assert fault.source.startswith("https://"), fault.name
        assert not fault.reason.endswith("."), fault.name


def test_every_fault_is_listed_and_belongs_to_a_backend():
    used = {fault.name for op in OPS for backend in op.backends for fault in backend.faults}
    assert used == {fault.name for fault in faults.FAULTS}


def test_every_fault_has_a_scenario_here():
    scenarios = Path(__file__).read_text()
    for name, value in vars(faults).items():
        assert not isinstance(value, Fault) or f"faults.{name}" in scenarios, name


def test_every_fault_is_in_the_document_with_its_source():
    document = (Path(__file__).parents[2] / "docs" / "selection.md").read_text()
    for fault in faults.FAULTS:
        assert f"]({fault.source})" in document, fault.name


def test_a_bf16_model_enters_no_deep_gemm_warm_up():
    """vLLM #41849: TinyLlama in bfloat16 on an H100, deep_gemm not installed; the warm-up was entered all the same, and
    ended the launch. The variables that keep it from being entered are given whether the library is there or not."""
    for libraries in ({}, LIBRARIES):
        choice = chosen(replace(H100, head_dim=64, libraries=libraries))["deep_gemm_warmup"]
        assert choice.backend.name == "skip"
        assert blamed(choice, "run") is faults.DEEP_GEMM_WITHOUT_FP8


def test_an_fp8_model_without_the_library_enters_no_deep_gemm_warm_up():
    """vLLM #41849, its other half: the model has FP8 layers, and deep_gemm is absent."""
    choices = chosen(replace(H100, **FP8, libraries={}))
    assert choices["deep_gemm_warmup"].backend.name == "skip"
    assert blamed(choices["deep_gemm_warmup"], "run") is faults.DEEP_GEMM_ABSENT
    assert choices["fp8_linear"].backend.name == "cutlass"
    assert chosen(replace(H100, **FP8))["deep_gemm_warmup"].backend.name == "run"


@pytest.mark.parametrize("workers", [4, 8])
def test_flashinfer_cutlass_experts_in_bf16_are_not_captured_on_sm_90(workers):
    """vLLM #39288: Qwen3-Next-80B in bfloat16 on H100s, TP 4 and 8: an illegal memory access while graphs are taken.
    Triton serves it; forcing the backend needs enforce-eager."""
    model = replace(H100, **QWEN3_NEXT, workers=workers)
    choice = chosen(model)["fused_moe"]
    assert choice.backend.name == "triton"
    assert blamed(choice, "flashinfer-cutlass") is faults.FLASHINFER_CUTLASS_BF16_GRAPHS
    with pytest.raises(BackendRefusedError) as refused:
        chosen(model, moe="flashinfer-cutlass")
    remedy = next(v.remedy for v in refused.value.verdicts if v.backend == "flashinfer-cutlass")
    assert "enforce-eager: true" in remedy
    forced = chosen(replace(model, cuda_graphs=False), moe="flashinfer-cutlass")
    assert forced["fused_moe"].backend.name == "flashinfer-cutlass"


def test_flashinfer_gdn_prefill_is_not_compiled_by_several_workers():
    """vLLM #41865: Qwen3.5-397B on eight H200s: one worker compiles, the others wait for ever. With one worker, or from
    a cast that holds the module, FlashInfer serves."""
    model = replace(H100, **QWEN3_NEXT, workers=8)
    choice = chosen(model)["delta_rule"]
    assert choice.backend.name == "triton"
    assert blamed(choice, "flashinfer") is faults.FLASHINFER_GDN_COMPILES
    assert chosen(replace(model, workers=1))["delta_rule"].backend.name == "flashinfer"
    cast = CastSummary(90, modules=frozenset({"gdn_prefill_sm90"}))
    assert chosen(replace(model, cast=cast))["delta_rule"].backend.name == "flashinfer"
    without = CastSummary(90, modules=frozenset({"norm"}))
    assert chosen(replace(model, cast=without))["delta_rule"].backend.name == "triton"


def test_the_native_engine_compiles_no_gated_delta_rule_at_a_customers_desk():
    """FlashInfer's is passed over, with the reason, and refused where the profile names it."""
    sizes: dict[str, Any] = {
        "gated_delta_value_dim": 128,
        "gated_delta_key_heads": 16,
        "gated_delta_value_heads": 32,
        "conv_width": 4,
    }
    native = replace(H100, **QWEN3_NEXT, **sizes, hidden_size=2048, engine="native")
    choice = chosen(native)["delta_rule"]
    assert choice.backend.name == "triton"
    assert blamed(choice, "flashinfer") is faults.FLASHINFER_GDN_NOT_CAST
    with pytest.raises(BackendRefusedError, match="cast"):
        chosen(native, gdn_prefill="flashinfer")


def test_a_model_without_expert_groups_is_routed_by_plain_top_k():
    """vLLM #34673: MiniMax-M2.1, sigmoid scores, no groups: "n_group should not be zero for DeepSeekV3 routing". A
    model with groups (DeepSeek V3) keeps its grouped kernels."""
    model = replace(B200, num_experts=256, experts_per_token=8, expert_scoring="sigmoid", num_expert_groups=0)
    choices = chosen(model)
    assert choices["moe_routing"].backend.name == "top-k"
    assert choices["fused_moe"].backend.name == "triton"
    assert blamed(choices["fused_moe"], "flashinfer-trtllm") is faults.GROUPED_ROUTING_WITHOUT_GROUPS
    grouped = chosen(replace(model, num_expert_groups=8))
    assert (grouped["moe_routing"].backend.name, grouped["fused_moe"].backend.name) == ("grouped", "flashinfer-trtllm")


@pytest.mark.parametrize("groups", [0, 1])
def test_the_native_engine_routes_without_groups_as_plain_top_k(groups):
    """The same model here: n_group 0, absent (0) and 1 are no groups, and every expert is in the race."""
    routing = Routing(top_k=2, scoring="sigmoid", num_groups=groups, top_groups=groups)
    assert not routing.grouped
    logits = torch.tensor([[0.1, 3.0, -1.0, 2.0]])
    assert moe_routing(logits, routing)[1].tolist() == [[1, 3]]


@pytest.mark.parametrize("gpu", [RTX_PRO_6000, GB10, A100, RTX_3090, L40S], ids=lambda context: context.place)
def test_sm12x_and_sm8x_are_served_without_deep_gemm_flashmla_and_tilelang(gpu):
    """vLLM #47169 (DeepGEMM's "Unknown recipe" on sm_120), #38006 (FlashMLA is for sm_90 and sm_100), SGLang #40286
    (TileLang's kernels need more shared memory than sm_12x has). Whatever is chosen there, it is none of them."""
    moe: dict[str, Any] = {
        "num_experts": 256,
        "experts_per_token": 8,
        "expert_scoring": "sigmoid",
        "num_expert_groups": 8,
    }
    choices = chosen(replace(gpu, **FP8, **moe, latent_attention=True, head_dim=576))
    assert choices["deep_gemm_warmup"].backend.name == "skip"
    assert choices["mla_attention"].backend.name == "triton"
    for op in ("fp8_linear", "fused_moe", "mla_attention"):
        assert choices[op].backend.name in ("triton", "cutlass", "marlin"), op
        ruled_out = reasons(choices[op])
        assert "flashmla" in ruled_out or "deepgemm" in ruled_out
    for backend in ("flashmla", "tilelang"):
        with pytest.raises(BackendRefusedError) as refused:
            chosen(replace(gpu, latent_attention=True, sparse_attention=True, head_dim=576), sparse_mla=backend)
        assert (refused.value.op.name, refused.value.requested) == ("sparse_mla", backend)
    with pytest.raises(BackendRefusedError) as refused:
        chosen(replace(gpu, **FP8), linear="deepgemm")
    assert (refused.value.op.name, refused.value.requested) == ("fp8_linear", "deepgemm")


def test_sm12x_has_its_own_sparse_attention_and_sm8x_none():
    sparse: dict[str, Any] = {"latent_attention": True, "sparse_attention": True, "head_dim": 576}
    assert chosen(replace(RTX_PRO_6000, **sparse))["sparse_mla"].backend.name == "flashinfer-sm120"
    choice = chosen(replace(H100, **sparse))["sparse_mla"]
    assert choice.backend.name == "flashmla"
    assert blamed(choice, "tilelang") is faults.NO_TILELANG_IN_VLLM
    with pytest.raises(BackendRefusedError) as refused:
        chosen(replace(A100, **sparse))
    assert refused.value.op.name == "sparse_mla"


def test_deep_gemm_is_blamed_on_sm12x_for_what_was_seen_there():
    choice = chosen(replace(RTX_PRO_6000, **FP8))["fp8_linear"]
    assert blamed(choice, "deepgemm") is faults.DEEP_GEMM_ON_SM12X


def test_triton_takes_no_fp8_weights_before_sm_89():
    """vLLM #54219: an FP8 mixture of experts on A100: "type fp8e4nv not supported in this architecture"."""
    model: dict[str, Any] = {**FP8, "num_experts": 128, "experts_per_token": 8}
    choice = chosen(replace(A100, **model))["fused_moe"]
    assert choice.backend.name == "marlin"
    assert blamed(choice, "triton") is faults.TRITON_FP8_BEFORE_SM89
    assert chosen(replace(L40S, **model))["fused_moe"].backend.name == "triton"


def test_block_scaled_fp8_experts_of_flashinfer_cutlass_are_for_sm_90():
    model: dict[str, Any] = {**FP8, "num_experts": 128, "experts_per_token": 8}
    assert "flashinfer-cutlass" not in reasons(chosen(replace(H100, **model))["fused_moe"])
    choice = chosen(replace(RTX_PRO_6000, **model))["fused_moe"]
    assert blamed(choice, "flashinfer-cutlass") is faults.FLASHINFER_CUTLASS_FP8_BLOCKS


@pytest.mark.parametrize("need", [{"kv_cache_dtype": "float8_e4m3fn"}, {"attention_sinks": True}])
def test_flash_attention_has_sinks_and_a_cache_in_8_bits_on_sm_90_alone(need):
    assert chosen(replace(H100, **need))["paged_attention"].backend.name == "flash-attn"
    choice = chosen(replace(A100, **need))["paged_attention"]
    assert choice.backend.name != "flash-attn"
    assert blamed(choice, "flash-attn") is faults.FLASH_ATTENTION_3_ONLY


def test_flashinfer_attention_is_not_captured_into_graphs_by_the_native_engine():
    native = replace(H100, engine="native", hidden_size=4096)
    assert blamed(chosen(native)["paged_attention"], "flashinfer") is faults.FLASHINFER_PLANS_EACH_STEP
    assert "flashinfer" not in reasons(chosen(replace(native, cuda_graphs=False))["paged_attention"])


def test_flashinfer_does_not_sample_since_neighbours_would_change_the_tokens():
    native = replace(H100, engine="native", hidden_size=4096, cuda_graphs=False)
    assert blamed(chosen(native)["sampling"], "flashinfer") is faults.FLASHINFER_SAMPLES_BY_PLACE
