"""The closed set of convolution kernels: one for decodes, one for chains, two for prefills."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from kernels.selection import Context
from kernels.variants import TRITON_TYPES, Variant, variant

_MODULE: Final = "kernels.causal_conv.triton:"
UNIT: Final = 8  # channels and strides are multiples of it: 16 bytes
WIDTH: Final = 4
ROWS: Final = 8  # tokens that a program takes of a prefill
BLOCK: Final = 256  # channels that a program takes


def variants(arch: int, model: Context | None = None) -> Iterator[Variant]:
    """`arch` does not matter: the kernels only move bytes."""
    for dtype in ("bfloat16", "float16") if model is None else (model.dtype,):
        yield from (decode(dtype), chain(dtype), prefill(dtype), last_inputs(dtype))


def decode(dtype: str) -> Variant:
    pointer = f"*{TRITON_TYPES[dtype]}"
    return variant(
        "causal_conv",
        f"{_MODULE}decode_kernel",
        (*(pointer,) * 4, "*i64", "i32", "i32", "i32"),
        {"WIDTH": WIDTH, "BLOCK": BLOCK},
    )


def chain(dtype: str) -> Variant:
    pointer = f"*{TRITON_TYPES[dtype]}"
    return variant(
        "causal_conv",
        f"{_MODULE}chain_kernel",
        (*(pointer,) * 5, "*i64", *("*i32",) * 3, *("i32",) * 5),
        {"WIDTH": WIDTH, "BLOCK": BLOCK},
    )


def prefill(dtype: str) -> Variant:
    pointer = f"*{TRITON_TYPES[dtype]}"
    return variant(
        "causal_conv",
        f"{_MODULE}prefill_kernel",
        (*(pointer,) * 4, "*i64", "*i32", *("i32",) * 5),
        {"WIDTH": WIDTH, "ROWS": ROWS, "BLOCK": BLOCK},
        num_warps=8,
    )


def last_inputs(dtype: str) -> Variant:
    pointer = f"*{TRITON_TYPES[dtype]}"
    return variant(
        "causal_conv",
        f"{_MODULE}last_inputs_kernel",
        (pointer, pointer, "*i64", "*i32", *("i32",) * 4),
        {"WIDTH": WIDTH, "BLOCK": BLOCK},
    )
