"""The closed set of kernels of mHC behind the last layer: by dtype, by how many streams there are, and by whether the
product comes in parts."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from kernels.mhc_pre.variants import BLOCK, DTYPES, STREAMS, project
from kernels.selection import Context
from kernels.variants import TRITON_TYPES, Variant, variant

OP: Final = "mhc_head"


def variants(arch: int, model: Context | None = None) -> Iterator[Variant]:
    """`arch` does not matter: the kernels only move bytes."""
    streams = STREAMS if model is None else (model.residual_streams,)
    for dtype in DTYPES if model is None else (model.dtype,):
        for count in streams:
            yield project(OP, dtype, count)
            yield from (of(dtype, count, few) for few in (True, False))


def of(dtype: str, streams: int, few: bool) -> Variant:
    """With `few` tokens the product comes in parts, with the squares; else whole."""
    pointer = f"*{TRITON_TYPES[dtype]}"
    return variant(
        OP,
        "kernels.mhc_head.triton:mhc_head_kernel",
        (pointer, "*fp32", "*fp32", "*fp32", pointer, "i32", "i32", "fp32", "fp32"),
        {"STREAMS": streams, "BLOCK": BLOCK, "FEW": few},
    )
