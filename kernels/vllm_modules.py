"""The modules of FlashInfer that vLLM 0.32 loads, whatever the model, or for a kind of model: what an image compiles
for vLLM ahead. Its attention backends (`kernels/vllm_backends.py`) have modules besides, one for each shape of heads.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

import msgspec

from kernels.modules import Module

USUAL: Final = "usual"
ALL: Final = "all"
# Beside the compiler's own: FlashInfer's binding of tensors includes it everywhere.
_HEADERS: Final = ("cublasLt.h",)


class VllmModule(msgspec.Struct, frozen=True):
    """`asked_by` is where vLLM's source calls it. `archs` are those that it is for; none: all. `usual`: it is built
    unless something else is asked for, in minutes; some of the others take a processor an hour each."""

    name: str
    generator: str
    asked_by: str
    archs: tuple[int, ...] = ()
    usual: bool = False


_UTILS: Final = "utils/flashinfer.py"
_FP4: Final = "flashinfer.jit.fp4_quantization"
_GEMM: Final = "flashinfer.jit.gemm"
_MOE: Final = "flashinfer.jit.fused_moe"
_CUTLASS_MOE: Final = "model_executor/layers/fused_moe/experts/flashinfer_cutlass_moe.py"
_ALL_REDUCE: Final = "distributed/device_communicators/flashinfer_all_reduce.py"
_GDN: Final = "model_executor/layers/mamba/gdn/qwen_gdn_linear_attn.py"
_MXFP8: Final = "model_executor/layers/quantization/utils/mxfp8_utils.py"
MODULES: Final = (
    VllmModule("sampling", "flashinfer.jit.sampling:gen_sampling_module", "v1/sample/ops/topk_topp_sampler.py",
               usual=True),
    VllmModule("topk", "flashinfer.jit.topk:gen_topk_module", "model_executor/layers/logits_processor.py", usual=True),
    VllmModule("norm", "flashinfer.jit.norm:gen_norm_module", "models/minimax_m3/nvidia/model.py", usual=True),
    VllmModule("rope", "flashinfer.jit.rope:gen_rope_module", "model_executor/layers/rotary_embedding/common.py",
               usual=True),
    # For latent attention, whatever the model's sizes.
    VllmModule("concat_mla", "flashinfer.jit.dsv3_optimizations:gen_concat_mla_module", _UTILS, usual=True),
    # For the gated delta rule, FP8 and experts.
    VllmModule("gdn_prefill_sm90", "flashinfer.jit.gdn:gen_gdn_prefill_sm90_module", _GDN, (90,)),
    VllmModule("fp8_blockscale_gemm_90", f"{_GEMM}:gen_fp8_blockscale_gemm_sm90_module",
               "model_executor/kernels/linear/scaled_mm/flashinfer.py", (90,)),
    VllmModule("fused_moe_90", f"{_MOE}:gen_cutlass_fused_moe_sm90_module", _CUTLASS_MOE, (90,)),
    VllmModule("fused_moe_100", f"{_MOE}:gen_cutlass_fused_moe_sm100_module", _CUTLASS_MOE, (100,)),
    VllmModule("fused_moe_103", f"{_MOE}:gen_cutlass_fused_moe_sm103_module", _CUTLASS_MOE, (103,)),
    VllmModule("fused_moe_120", f"{_MOE}:gen_cutlass_fused_moe_sm120_module", _CUTLASS_MOE, (120, 121)),
    VllmModule("gemm", f"{_GEMM}:gen_gemm_module", _UTILS, (100, 103, 120, 121)),
    VllmModule("fp8_gemm_cutlass", f"{_GEMM}:gen_gemm_sm100_module_cutlass_fp8", _UTILS, (100, 103, 120, 121)),
    # For tensor parallelism: the sum over the GPUs in one kernel with the norm after it.
    VllmModule("trtllm_comm", "flashinfer.jit.comm:gen_trtllm_comm_module", _ALL_REDUCE, (90, 100, 103)),
    # For FP4 and MXFP8, which Blackwell computes in.
    VllmModule("fp4_quantization_100", f"{_FP4}:gen_fp4_quantization_sm100_module", _UTILS, (100,)),
    VllmModule("fp4_quantization_103", f"{_FP4}:gen_fp4_quantization_sm103_module", _UTILS, (103,)),
    VllmModule("fp4_quantization_120f", f"{_FP4}:gen_fp4_quantization_sm120f_module", _UTILS, (120, 121)),
    VllmModule("fp4_gemm_cutlass", f"{_GEMM}:gen_gemm_sm100_module_cutlass_fp4", _UTILS, (100,)),
    VllmModule("fp4_gemm_cutlass_sm103", f"{_GEMM}:gen_gemm_sm103_module_cutlass_fp4", _UTILS, (103,)),
    VllmModule("fp4_gemm_cutlass_sm120", f"{_GEMM}:gen_gemm_sm120_module_cutlass_fp4", _UTILS, (120, 121)),
    VllmModule("mxfp8_quantization_sm100", "flashinfer.jit.fp8_quantization:gen_mxfp8_quantization_sm100_module",
               _MXFP8, (100, 103, 120, 121)),
    VllmModule("mxfp8_gemm_cutlass", f"{_GEMM}:gen_gemm_sm100_module_cutlass_mxfp8", _UTILS, (100, 103)),
    VllmModule("mxfp8_gemm_cutlass_sm120", f"{_GEMM}:gen_gemm_sm120_module_cutlass_mxfp8", _UTILS, (120, 121)),
)  # fmt: skip


def modules(arch: int, asked: Sequence[str] = (USUAL,)) -> Iterator[Module]:
    """Those for an architecture, such as 90. `asked` has names of modules, "usual" or "all".

    Raises:
        ValueError: a name is not known.
    """
    known = {module.name for module in MODULES}
    if unknown := sorted(set(asked) - known - {USUAL, ALL}):
        raise ValueError(
            f"{', '.join(unknown)}: no such module; name {USUAL}, {ALL} or some of {', '.join(sorted(known))}"
        )
    for module in MODULES:
        wanted = ALL in asked or (USUAL in asked and module.usual) or module.name in asked
        if wanted and (not module.archs or arch in module.archs):
            yield Module("vllm", module.name, module.generator, headers=_HEADERS)
