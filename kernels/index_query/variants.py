"""The closed set of these kernels: by dtype, by how queries are rounded, and by whether the GPU has float8_e4m3fn."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from kernels.index_cache.variants import DIM, DTYPES, ROTARY, ROWS, codes_of
from kernels.selection import Context
from kernels.variants import TRITON_TYPES, Variant, variant

KERNEL: Final = "kernels.index_query.triton:index_query_kernel"


def variants(arch: int, model: Context | None = None) -> Iterator[Variant]:
    for dtype in DTYPES if model is None else (model.dtype,):
        for mxfp4 in (False, True) if model is None else (model.index_mxfp4,):
            yield of(arch, dtype, mxfp4)


def of(arch: int, dtype: str, mxfp4: bool) -> Variant:
    codes = "*u8" if mxfp4 else codes_of(arch)
    return variant(
        "index_query",
        KERNEL,
        (f"*{TRITON_TYPES[dtype]}", "*fp32", "*i64", "*fp32", codes, "*fp32", "i32", "i32", "i32", "fp32"),
        {"DIM": DIM, "ROPE": ROTARY, "ROWS": ROWS // 2 if mxfp4 else ROWS, "MXFP4": mxfp4},
        num_warps=8,
    )
