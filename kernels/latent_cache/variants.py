"""The closed set of these kernels: by dtype, and by the dimensions of a latent."""

from __future__ import annotations

from collections.abc import Iterator

from kernels.mla_attention.variants import latents
from kernels.selection import Context
from kernels.variants import TRITON_TYPES, Variant, variant

KERNEL = "kernels.latent_cache.triton:latent_cache_kernel"
UNIT = 8  # head sizes and strides are multiples of it: 16 bytes
ROWS = 16  # heads of queries that a program takes, which share their cosines
TOKENS = 2  # whose latents a program takes


def variants(arch: int, model: Context | None = None) -> Iterator[Variant]:
    """`arch` does not matter: the kernel only moves bytes."""
    yield from dict.fromkeys(of(dtype, shape.rank, shape.rope) for dtype, shape in latents(model))


def of(dtype: str, rank: int, rope: int) -> Variant:
    pointer = f"*{TRITON_TYPES[dtype]}"
    return variant(
        "latent_cache",
        KERNEL,
        (*(pointer,) * 3, "*i64", pointer, pointer, "*i64", *("i32",) * 5, "fp32"),
        {"RANK": rank, "ROPE": rope, "ROWS": ROWS, "TOKENS": TOKENS},
    )
