"""The closed set of rotary kernels: a block covers half of the turning dimensions; both layouts of the pairs."""

from __future__ import annotations

from collections.abc import Iterator

from kernels.context import possible
from kernels.selection import Context
from kernels.variants import TRITON_TYPES, Variant, variant

KERNEL = "kernels.rotary.triton:rotary_kernel"
STRIDE_UNIT = 8  # strides of tokens and heads are multiples of it: 16 bytes
HALVES = (16, 32, 64, 128)  # pairs that a block covers
TILE = 1024  # pairs that a program turns: those of several heads, so that they share their cosines
UNITS = (8, 1)  # of the number of pairs; odd ones are served too, by narrower accesses


def variants(arch: int, model: Context | None = None) -> Iterator[Variant]:
    """`arch` does not matter: the kernel only moves bytes."""
    if model is not None:
        half = model.rotary_dim // 2
        yield of(model.dtype, block_of(half), unit_of(half), model.rotary_interleaved)
        return
    for dtype in ("bfloat16", "float16"):
        for block in HALVES:
            for unit in UNITS:
                for interleaved in possible("rotary_interleaved"):
                    yield of(dtype, block, unit, interleaved)


def block_of(half: int) -> int:
    """The smallest block that covers `half` pairs."""
    for block in HALVES:
        if block >= half:
            return block
    raise ValueError(f"rotary supports at most {2 * HALVES[-1]} dimensions of a head, not {2 * half}")


def unit_of(half: int) -> int:
    return next(unit for unit in UNITS if half % unit == 0)


def of(dtype: str, block: int, unit: int, interleaved: bool) -> Variant:
    pointer = f"*{TRITON_TYPES[dtype]}"
    return variant(
        "rotary",
        KERNEL,
        (pointer, "*i64", pointer, "i32", "i32", "i32", "i32", "i32"),
        {"ROWS": TILE // block, "HALF": block, "UNIT": unit, "INTERLEAVED": interleaved},
        num_warps=2,
    )
