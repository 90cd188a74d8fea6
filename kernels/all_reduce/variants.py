"""The closed set of all-reduce kernels: one a dtype and number of ranks."""

from __future__ import annotations

from collections.abc import Iterator

from kernels.all_reduce import CHUNK
from kernels.context import Context
from kernels.variants import TRITON_TYPES, Variant, variant

KERNEL = "kernels.all_reduce.triton:all_reduce_kernel"
COUNTS = (2, 4, 8)  # of ranks
DTYPES = ("bfloat16", "float16")
UNIT = 8  # sizes are multiples of it: 16 bytes


def variants(arch: int, model: Context | None = None) -> Iterator[Variant]:
    """`arch` does not matter: the kernel moves bytes."""
    for dtype in DTYPES if model is None else (model.dtype,):
        for count in COUNTS if model is None else (model.workers,):
            yield of(dtype, count)


def of(dtype: str, count: int) -> Variant:
    arguments = (f"*{TRITON_TYPES[dtype]}", "*i64", "*i32", "i32", "i32")
    return variant("all_reduce", KERNEL, arguments, {"RANKS": count, "CHUNK": CHUNK})
