"""The closed set of mHC's kernels: by dtype, and by how many streams there are."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from kernels.selection import Context
from kernels.variants import TRITON_TYPES, Variant, variant

_MODULE: Final = "kernels.mhc_pre.triton"
UNIT: Final = 8  # hidden sizes are multiples of it: 16 bytes
BLOCK: Final = 1024  # numbers of each stream that a program takes at a time
STREAMS: Final = (2, 4)
DTYPES: Final = ("bfloat16", "float16")
# Up to so many tokens each program multiplies a slice of all streams, `TOGETHER` tokens one after the other, so that
# the weights are read by all processors. Products of more tokens are cuBLAS's.
MOST_TOKENS: Final = 64
SLICE: Final = 128
TOGETHER: Final = 4


def variants(arch: int, model: Context | None = None) -> Iterator[Variant]:
    """`arch` does not matter: the kernels only move bytes, beside few numbers for each token."""
    streams = STREAMS if model is None else (model.residual_streams,)
    for dtype in DTYPES if model is None else (model.dtype,):
        for count in streams:
            yield project("mhc_pre", dtype, rows_of(count))
            yield from (of(dtype, count, few) for few in (True, False))


def rows_of(streams: int) -> int:
    """Of what streams are multiplied by before a sub-layer."""
    return (2 + streams) * streams


def project(op: str, dtype: str, rows: int) -> Variant:
    return variant(
        op,
        f"{_MODULE}:project_kernel",
        (f"*{TRITON_TYPES[dtype]}", "*fp32", "*fp32", "i32", "i32"),
        {"ROWS": rows, "PADDED": 1 << rows.bit_length(), "SLICE": SLICE, "TOGETHER": TOGETHER},
    )


def of(dtype: str, streams: int, few: bool) -> Variant:
    """With `few` tokens the product comes in parts, with the squares; else whole."""
    pointer = f"*{TRITON_TYPES[dtype]}"
    return variant(
        "mhc_pre",
        f"{_MODULE}:mhc_pre_kernel",
        (pointer, "*fp32", "*fp32", "*fp32", pointer, "*fp32", "*fp32", "i32", "i32", "i32", "fp32", "fp32"),
        {"STREAMS": streams, "BLOCK": BLOCK, "FEW": few},
    )
