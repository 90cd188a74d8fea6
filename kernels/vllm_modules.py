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
    """`asked_by` is where vLLM's source calls it. `capability` is the one major version that it is for; None: all.
    `usual`: it is built unless something else is asked for; the others take a processor an hour each."""

    name: str
    generator: str
    asked_by: str
    capability: int | None = None
    usual: bool = False


MODULES: Final = (
    VllmModule("sampling", "flashinfer.jit.sampling:gen_sampling_module", "v1/sample/ops/topk_topp_sampler.py",
               usual=True),
    VllmModule("topk", "flashinfer.jit.topk:gen_topk_module", "model_executor/layers/logits_processor.py", usual=True),
    VllmModule("norm", "flashinfer.jit.norm:gen_norm_module", "models/minimax_m3/nvidia/model.py", usual=True),
    VllmModule("rope", "flashinfer.jit.rope:gen_rope_module", "model_executor/layers/rotary_embedding/common.py",
               usual=True),
    VllmModule("fp8_blockscale_gemm_90", "flashinfer.jit.gemm:gen_fp8_blockscale_gemm_sm90_module",
               "model_executor/kernels/linear/scaled_mm/flashinfer.py", 9),
    VllmModule("fused_moe_90", "flashinfer.jit.fused_moe:gen_cutlass_fused_moe_sm90_module",
               "model_executor/layers/fused_moe/experts/flashinfer_cutlass_moe.py", 9),
    VllmModule("fused_moe_100", "flashinfer.jit.fused_moe:gen_cutlass_fused_moe_sm100_module",
               "model_executor/layers/fused_moe/experts/flashinfer_cutlass_moe.py", 10),
    VllmModule("fused_moe_120", "flashinfer.jit.fused_moe:gen_cutlass_fused_moe_sm120_module",
               "model_executor/layers/fused_moe/experts/flashinfer_cutlass_moe.py", 12),
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
        if wanted and module.capability in (None, arch // 10):
            yield Module("vllm", module.name, module.generator, headers=_HEADERS)
