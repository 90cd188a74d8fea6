"""The closed set of these kernels: by dtype, and by whether the GPU has float8_e4m3fn."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from kernels.index_cache.variants import DIM, DTYPES, ROTARY, ROWS, codes_of
from kernels.selection import Context
from kernels.variants import TRITON_TYPES, Variant, variant

KERNEL: Final = "kernels.index_query.triton:index_query_kernel"


def variants(arch: int, model: Context | None = None) -> Iterator[Variant]:
    yield from (of(arch, dtype) for dtype in (DTYPES if model is None else (model.dtype,)))


def of(arch: int, dtype: str) -> Variant:
    return variant(
        "index_query",
        KERNEL,
        (f"*{TRITON_TYPES[dtype]}", "*fp32", "*i64", "*fp32", codes_of(arch), "*fp32", "i32", "i32", "fp32"),
        {"DIM": DIM, "ROPE": ROTARY, "ROWS": ROWS},
        num_warps=8,
    )
