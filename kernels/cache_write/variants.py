"""The closed set of cache write kernels: one tile for all widths, by the dtypes of the model and of its cache."""

from __future__ import annotations

from collections.abc import Iterator

from kernels.selection import Context
from kernels.variants import TRITON_TYPES, Variant, variant

KERNEL = "kernels.cache_write.triton:cache_write_kernel"
UNIT = 8  # widths (kv_heads * head_dim) and strides are multiples of it: 16 bytes
ROWS, BLOCK = 8, 256  # of a program, of keys and of values: 512 bytes a row, so that few widths leave threads idle
CACHE_DTYPES = ("bfloat16", "float16", "float8_e4m3fn")
NATIVE_E4M3 = 89  # from this architecture on, GPUs convert to float8_e4m3fn by an instruction


def variants(arch: int, model: Context | None = None) -> Iterator[Variant]:
    for dtype in ("bfloat16", "float16") if model is None else (model.dtype,):
        for cache_dtype in CACHE_DTYPES if model is None else (model.cache_dtype,):
            yield of(arch, dtype, cache_dtype)


def of(arch: int, dtype: str, cache_dtype: str) -> Variant:
    """Below `NATIVE_E4M3` a cache in 8 bits is handed over as bytes, into which the kernel encodes by integers."""
    pointer = f"*{TRITON_TYPES[dtype]}"
    by_integers = cache_dtype == "float8_e4m3fn" and arch < NATIVE_E4M3
    cache = "*u8" if by_integers else f"*{TRITON_TYPES[cache_dtype]}"
    return variant(
        "cache_write",
        KERNEL,
        (pointer, pointer, cache, cache, "*i64", "i32", "i32", "i32", "i32", "fp32", "fp32"),
        {"ROWS": ROWS, "BLOCK": BLOCK},
    )
