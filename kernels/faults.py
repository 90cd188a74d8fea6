"""Known defects of backends, each with the report it comes from.

A fault is a row here; the backends that have it name it in their own rows. tests/kernels/test_faults.py states the
scenario of each source.
"""

from __future__ import annotations

from kernels.backend import Fault
from kernels.context import Context

_VLLM = "https://github.com/vllm-project/vllm"
_FLASHINFER = "https://github.com/flashinfer-ai/flashinfer/blob/v0.6.13"
GDN_PREFILL_MODULE = "gdn_prefill"  # FlashInfer's modules for it begin so


def _gdn_prefill_is_cast(context: Context) -> bool:
    return context.cast is not None and any(name.startswith(GDN_PREFILL_MODULE) for name in context.cast.modules)


DEEP_GEMM_ABSENT = Fault(
    "deep-gemm-absent",
    reason="enters DeepGEMM's warm-up, which ends the launch where the library deep_gemm is absent",
    source=f"{_VLLM}/issues/41849",
    applies=lambda context: "deep_gemm" not in context.libraries,
)
DEEP_GEMM_WITHOUT_FP8 = Fault(
    "deep-gemm-without-fp8",
    reason="enters DeepGEMM's warm-up, for which this model has no block-scaled FP8 layer",
    source=f"{_VLLM}/issues/41849",
    applies=lambda context: context.fp8_blocks is None,
)
DEEP_GEMM_ON_SM12X = Fault(
    "deep-gemm-on-sm12x",
    reason='stops in its warm-up on sm_12x: "Unknown recipe"',
    source=f"{_VLLM}/issues/47169",
    applies=lambda context: context.capability is not None and context.capability[0] == 12,
)
FLASHINFER_CUTLASS_BF16_GRAPHS = Fault(
    "flashinfer-cutlass-bf16-graphs",
    reason="ends in an illegal memory access while CUDA graphs of a bfloat16 model are captured on sm_90",
    source=f"{_VLLM}/issues/39288",
    applies=lambda context: (
        context.capability == (9, 0)
        and context.dtype == "bfloat16"
        and context.fp8_blocks is None
        and context.cuda_graphs
    ),
    remedy="It runs without CUDA graphs: set `enforce-eager: true`.",
)
FLASHINFER_CUTLASS_FP8_BLOCKS = Fault(
    "flashinfer-cutlass-fp8-blocks",
    reason="computes block-scaled FP8 on sm_90 only",
    source=f"{_VLLM}/blob/v0.32.0/vllm/model_executor/layers/fused_moe/experts/flashinfer_cutlass_moe.py",
    applies=lambda context: context.fp8_blocks is not None and context.capability != (9, 0),
)
FLASHINFER_GDN_COMPILES = Fault(
    "flashinfer-gdn-compiles",
    reason="is compiled by every worker at its first step, where several workers deadlock waiting for each other",
    source=f"{_VLLM}/issues/41865",
    applies=lambda context: context.workers > 1 and not _gdn_prefill_is_cast(context),
    remedy="It runs with one worker, or from a cast that holds it.",
)
FLASHINFER_GDN_NOT_CAST = Fault(
    "flashinfer-gdn-not-cast",
    reason="is compiled at its first prefill, and no cast of Ingot's holds it",
    source=f"{_FLASHINFER}/flashinfer/gdn_prefill.py",
    applies=lambda _: True,
)
GROUPED_ROUTING_WITHOUT_GROUPS = Fault(
    "grouped-routing-without-groups",
    reason="routes by groups of experts and stops at n_group 0; this model's experts are in no groups",
    source=f"{_VLLM}/pull/34673",
    applies=lambda context: context.expert_scoring == "sigmoid" and context.num_expert_groups < 1,
)
FLASH_ATTENTION_3_ONLY = Fault(
    "flash-attention-3-only",
    reason="has a cache in 8 bits and attention sinks only in version 3, which is for sm_90",
    source="https://docs.vllm.ai/en/v0.25.0/design/attention_backends/",
    applies=lambda context: (
        context.capability is not None
        and context.capability[0] != 9
        and (context.cache_dtype == "float8_e4m3fn" or context.attention_sinks)
    ),
)
FLASHINFER_PLANS_EACH_STEP = Fault(
    "flashinfer-plans-each-step",
    reason="plans each step on the host, which a CUDA graph would replay as it was when it was captured",
    source=f"{_FLASHINFER}/flashinfer/prefill.py",
    applies=lambda context: context.cuda_graphs,
    remedy="It runs without CUDA graphs: set `enforce-eager: true`.",
)
FLASHINFER_SAMPLES_BY_PLACE = Fault(
    "flashinfer-samples-by-place",
    reason="samples by a request's place in the batch as well as its seed, so that its neighbours change its tokens",
    source=f"{_FLASHINFER}/include/flashinfer/sampling.cuh",
    applies=lambda _: True,
)
TRITON_FP8_BEFORE_SM89 = Fault(
    "triton-fp8-before-sm89",
    reason="needs sm_89 or newer for weights in FP8: Triton has no fp8e4nv before",
    source=f"{_VLLM}/issues/54219",
    applies=lambda context: (
        context.fp8_blocks is not None and context.capability is not None and context.capability < (8, 9)
    ),
)
NO_TILELANG_IN_VLLM = Fault(
    "no-tilelang-in-vllm",
    reason="is no attention backend of vLLM's",
    source=f"{_VLLM}/issues/30644",
    applies=lambda _: True,
)

FAULTS: tuple[Fault, ...] = (
    DEEP_GEMM_ABSENT,
    DEEP_GEMM_WITHOUT_FP8,
    DEEP_GEMM_ON_SM12X,
    FLASHINFER_CUTLASS_BF16_GRAPHS,
    FLASHINFER_CUTLASS_FP8_BLOCKS,
    FLASHINFER_GDN_COMPILES,
    FLASHINFER_GDN_NOT_CAST,
    GROUPED_ROUTING_WITHOUT_GROUPS,
    FLASH_ATTENTION_3_ONLY,
    FLASHINFER_PLANS_EACH_STEP,
    FLASHINFER_SAMPLES_BY_PLACE,
    TRITON_FP8_BEFORE_SM89,
    NO_TILELANG_IN_VLLM,
)
