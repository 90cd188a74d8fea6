"""The closed set of these kernels: by dtype, by which pairs turn, and by whether the GPU has float8_e4m3fn."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from kernels.fp8_linear.variants import has_fp8
from kernels.selection import Context
from kernels.variants import TRITON_TYPES, Variant, variant

KERNEL: Final = "kernels.index_cache.triton:index_cache_kernel"
DTYPES: Final = ("bfloat16", "float16")
DIM: Final = 128  # of heads and keys, as every published model has it
ROTARY: Final = 64
UNIT: Final = 8  # strides are multiples of it: 16 bytes
ROWS: Final = 64  # heads of queries that a program takes
TOKENS: Final = 16  # whose keys a program takes: as few as a matrix unit does


def variants(arch: int, model: Context | None = None) -> Iterator[Variant]:
    if model is not None:
        yield of(arch, model.dtype, model.index_interleaved)
        return
    for dtype in DTYPES:
        for interleaved in (False, True):
            yield of(arch, dtype, interleaved)


def of(arch: int, dtype: str, interleaved: bool) -> Variant:
    pointer, codes = f"*{TRITON_TYPES[dtype]}", codes_of(arch)
    return variant(
        "index_cache",
        KERNEL,
        (pointer, pointer, "*fp32", "*i64", pointer, "*fp32", "*fp32", codes, "*fp32", codes, "*fp32", "*i64",
         *("i32",) * 6, "fp32", "fp32"),
        {"DIM": DIM, "ROTARY": ROTARY, "ROWS": ROWS, "TOKENS": TOKENS, "INTERLEAVED": interleaved},
        num_warps=8,
    )  # fmt: skip


def codes_of(arch: int) -> str:
    """How numbers in 8 bits are given to a kernel."""
    return "*fp8e4nv" if has_fp8(arch) else "*u8"
