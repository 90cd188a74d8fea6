"""The closed set of these kernels: a block covers a head; by the dtypes of the model and of its cache."""

from __future__ import annotations

from collections.abc import Iterator

from kernels.context import possible
from kernels.selection import Context
from kernels.variants import TRITON_TYPES, Variant, variant

KERNEL = "kernels.rotary_cache.triton:rotary_cache_kernel"
UNIT = 8  # head sizes, pairs that turn, and strides are multiples of it: 16 bytes
BLOCKS = (64, 128, 256)  # dimensions of a head
TILE = 1024  # dimensions that a program takes: those of several heads, which share their cosines
CACHE_DTYPES = ("bfloat16", "float16", "float8_e4m3fn")
NATIVE_E4M3 = 89  # from this architecture on, GPUs convert to float8_e4m3fn by an instruction


def variants(arch: int, model: Context | None = None) -> Iterator[Variant]:
    if model is not None:
        block, norm = block_of(model.head_dim), model.qk_norm == "head"
        yield of(arch, model.dtype, model.cache_dtype, block, norm, model.rotary_interleaved)
        return
    for dtype in ("bfloat16", "float16"):
        for cache_dtype in CACHE_DTYPES:
            for block in BLOCKS:
                for norm in (False, True):
                    for interleaved in possible("rotary_interleaved"):
                        yield of(arch, dtype, cache_dtype, block, norm, interleaved)


def block_of(head_dim: int) -> int:
    """The smallest block that covers a head."""
    for block in BLOCKS:
        if block >= head_dim:
            return block
    raise ValueError(f"heads have at most {BLOCKS[-1]} dimensions here, but these have {head_dim}")


def rows_of(block: int) -> int:
    """How many heads of tokens a program takes."""
    return TILE // block


def of(arch: int, dtype: str, cache_dtype: str, block: int, norm: bool, interleaved: bool) -> Variant:
    """Below `NATIVE_E4M3` a cache in 8 bits is handed over as bytes, into which the kernel encodes by integers."""
    pointer = f"*{TRITON_TYPES[dtype]}"
    by_integers = cache_dtype == "float8_e4m3fn" and arch < NATIVE_E4M3
    cache = "*u8" if by_integers else f"*{TRITON_TYPES[cache_dtype]}"
    return variant(
        "rotary_cache",
        KERNEL,
        (*(pointer,) * 5, "*i64", pointer, cache, cache, "*i64", *("i32",) * 8, *("fp32",) * 4),
        {"ROWS": rows_of(block), "BLOCK": block, "NORM": norm, "INTERLEAVED": interleaved},
    )
