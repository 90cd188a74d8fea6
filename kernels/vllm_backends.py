"""What vLLM has to choose from, op by op. How it is made to use one of them is for `appliance/vllm/backends.py`.

Capabilities, dtypes and head sizes are those that vLLM 0.32 tests for before it uses a backend; where a report says
that it should not, the row names the fault. Ops that only vLLM runs are here whole.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

from kernels import faults
from kernels.backend import Backend, Condition
from kernels.selection import Op

_HALVES = ("bfloat16", "float16")
_CACHE_IN_16_OR_8_BITS = (*_HALVES, "float8_e4m3fn")
_SPARSE_MLA_ONLY_ON_DATACENTRE_GPUS = "https://github.com/vllm-project/vllm/issues/38006"
_DEEP_GEMM_FROM_SM90 = "https://github.com/vllm-project/vllm/issues/35021"

_backend = partial(Backend, engine="vllm", devices=("cuda",), min_capability=(8, 0), dtypes=_HALVES)

_ON_DEEP_GEMM: Mapping[str, Any] = {
    "dtypes": ("bfloat16",),
    "min_capability": (9, 0),
    "max_capability": (12, 1),
    "libraries": ("deep_gemm",),
    "faults": (faults.DEEP_GEMM_ON_SM12X,),
    "source": _DEEP_GEMM_FROM_SM90,
}

_FP8_BLOCKS = Condition(
    "fp8_blocks",
    one_of=((128, 128),),
    says="is for weights in FP8 with a scale for each 128 x 128, which this model has not",
)

PAGED_ATTENTION = (
    _backend("flash-attn", faults=(faults.FLASH_ATTENTION_3_ONLY,)),
    _backend(
        "flashinfer",
        head_dims=(64, 128, 256, 512),
        max_capability=(12, 1),
        lacks=("attention_sinks",),
        libraries=("flashinfer",),
    ),
    _backend("triton", dtypes=(*_HALVES, "float32")),
)

MLA_ATTENTION = (
    _backend(
        "flash-attn",
        kv_cache_dtypes=_HALVES,
        min_capability=(9, 0),
        max_capability=(9, 0),
    ),
    _backend(
        "flashinfer",
        kv_cache_dtypes=_CACHE_IN_16_OR_8_BITS,
        min_capability=(10, 0),
        max_capability=(10, 3),
        libraries=("flashinfer",),
    ),
    _backend(
        "flashmla",
        kv_cache_dtypes=_CACHE_IN_16_OR_8_BITS,
        min_capability=(9, 0),
        max_capability=(10, 3),
        source=_SPARSE_MLA_ONLY_ON_DATACENTRE_GPUS,
    ),
    _backend("triton", kv_cache_dtypes=_CACHE_IN_16_OR_8_BITS),
)

SPARSE_MLA = (
    _backend(
        "flashmla",
        dtypes=("bfloat16",),
        head_dims=(512, 576),
        min_capability=(9, 0),
        max_capability=(10, 3),
        source=_SPARSE_MLA_ONLY_ON_DATACENTRE_GPUS,
    ),
    _backend(
        "flashinfer",
        head_dims=(512, 576),
        min_capability=(10, 0),
        max_capability=(10, 3),
        libraries=("flashinfer",),
    ),
    _backend(
        "flashinfer-sm120",
        head_dims=(512, 576),
        min_capability=(12, 0),
        max_capability=(12, 1),
        libraries=("flashinfer",),
    ),
    _backend(
        "tilelang",
        min_capability=(9, 0),
        max_capability=(10, 3),
        faults=(faults.NO_TILELANG_IN_VLLM,),
        source="https://github.com/sgl-project/sglang/issues/40286",
    ),
)

DELTA_RULE = (
    _backend(
        "flashinfer",
        min_capability=(9, 0),
        max_capability=(12, 1),
        conditions=(Condition("gated_delta_head_dim", one_of=(128,)),),
        libraries=("flashinfer",),
        faults=(faults.FLASHINFER_GDN_COMPILES,),
    ),
    _backend("triton"),
)

FP8_LINEAR = (
    _backend("deepgemm", **_ON_DEEP_GEMM),
    _backend("cutlass", min_capability=(9, 0), max_capability=(12, 1)),
    _backend("triton", faults=(faults.TRITON_FP8_BEFORE_SM89,)),
    _backend("marlin"),
)

MOE_ROUTING = (
    Backend(
        "grouped",
        engine="vllm",
        devices=("cuda",),
        conditions=(Condition("num_expert_groups", at_least=2),),
        faults=(faults.GROUPED_ROUTING_WITHOUT_GROUPS,),
    ),
    Backend("top-k", engine="vllm", devices=("cuda",)),
)

FUSED_MOE = (
    _backend(
        "flashinfer-trtllm",
        dtypes=("bfloat16",),
        min_capability=(10, 0),
        max_capability=(10, 3),
        libraries=("flashinfer",),
        faults=(faults.GROUPED_ROUTING_WITHOUT_GROUPS,),
    ),
    _backend("deepgemm", conditions=(_FP8_BLOCKS,), **_ON_DEEP_GEMM),
    _backend("triton", faults=(faults.TRITON_FP8_BEFORE_SM89,)),
    _backend("marlin", conditions=(_FP8_BLOCKS,)),
    _backend(
        "flashinfer-cutlass",
        min_capability=(9, 0),
        max_capability=(12, 1),
        libraries=("flashinfer",),
        faults=(faults.FLASHINFER_CUTLASS_BF16_GRAPHS, faults.FLASHINFER_CUTLASS_FP8_BLOCKS),
    ),
)

# Whether DeepGEMM is loaded and warmed up at all: vLLM decides that apart from what computes a layer.
DEEP_GEMM = Op(
    "deep_gemm_warmup",
    (
        Backend(
            "run",
            engine="vllm",
            devices=("cuda",),
            min_capability=(9, 0),
            max_capability=(12, 1),
            faults=(faults.DEEP_GEMM_WITHOUT_FP8, faults.DEEP_GEMM_ABSENT, faults.DEEP_GEMM_ON_SM12X),
            source=_DEEP_GEMM_FROM_SM90,
        ),
        Backend("skip", engine="vllm", devices=("cuda",)),
    ),
)
