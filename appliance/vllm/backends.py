"""Which flags and variables make `vllm serve` use a backend, by op and backend.

Which backends vLLM has, and what stands against them on a GPU, is in `kernels/vllm_backends.py`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import msgspec


class BackendOptions(msgspec.Struct, frozen=True, kw_only=True):
    """`arguments` are flags without their dashes."""

    arguments: Mapping[str, str] = {}
    environment: Mapping[str, str] = {}


def _by_flag(flag: str, values: Mapping[str, str]) -> dict[str, BackendOptions]:
    return {backend: BackendOptions(arguments={flag: value}) for backend, value in values.items()}


OPTIONS: Final[Mapping[str, Mapping[str, BackendOptions]]] = {
    "paged_attention": _by_flag(
        "attention-backend", {"flash-attn": "FLASH_ATTN", "flashinfer": "FLASHINFER", "triton": "TRITON_ATTN"}
    ),
    "mla_attention": _by_flag(
        "attention-backend",
        {
            "flash-attn": "FLASH_ATTN_MLA",
            "flashinfer": "FLASHINFER_MLA",
            "flashmla": "FLASHMLA",
            "triton": "TRITON_MLA",
        },
    ),
    "sparse_mla": {
        **_by_flag(
            "attention-backend",
            {
                "flashmla": "FLASHMLA_SPARSE",
                "flashinfer": "FLASHINFER_MLA_SPARSE",
                "flashinfer-sm120": "FLASHINFER_MLA_SPARSE_SM120",
            },
        ),
        "tilelang": BackendOptions(),  # which nothing makes vLLM use
    },
    "delta_rule": _by_flag("gdn-prefill-backend", {"flashinfer": "flashinfer", "triton": "triton"}),
    "fp8_linear": _by_flag(
        "linear-backend", {"deepgemm": "deep_gemm", "cutlass": "cutlass", "triton": "triton", "marlin": "marlin"}
    ),
    "moe_routing": {
        "grouped": BackendOptions(environment={"VLLM_USE_FUSED_MOE_GROUPED_TOPK": "1"}),
        "top-k": BackendOptions(environment={"VLLM_USE_FUSED_MOE_GROUPED_TOPK": "0"}),
    },
    "fused_moe": _by_flag(
        "moe-backend",
        {
            "flashinfer-trtllm": "flashinfer_trtllm",
            "deepgemm": "deep_gemm",
            "triton": "triton",
            "marlin": "marlin",
            "flashinfer-cutlass": "flashinfer_cutlass",
        },
    ),
    "deep_gemm_warmup": {
        "run": BackendOptions(environment={"VLLM_USE_DEEP_GEMM": "1", "VLLM_DEEP_GEMM_WARMUP": "relax"}),
        "skip": BackendOptions(environment={"VLLM_USE_DEEP_GEMM": "0", "VLLM_DEEP_GEMM_WARMUP": "skip"}),
    },
}


def options_of(op: str, backend: str) -> BackendOptions:
    return OPTIONS[op][backend]
