"""The closed set of gated norm kernels: a block covers a head, several heads share a program."""

from __future__ import annotations

from collections.abc import Iterator

from kernels.selection import Context
from kernels.variants import TRITON_TYPES, Variant, variant

KERNEL = "kernels.gated_norm.triton:gated_norm_kernel"
UNIT = 8  # head sizes and strides are multiples of it: 16 bytes
BLOCKS = (64, 128, 256)
TILE = 2048  # elements that a program takes


def variants(arch: int, model: Context | None = None) -> Iterator[Variant]:
    """`arch` does not matter: the kernel only moves bytes."""
    if model is not None:
        yield of(model.dtype, block_of(model.gated_delta_value_dim))
        return
    yield from (of(dtype, block) for dtype in ("bfloat16", "float16") for block in BLOCKS)


def block_of(size: int) -> int:
    """The smallest block that covers a head."""
    for block in BLOCKS:
        if block >= size:
            return block
    raise ValueError(f"gated norm supports heads of at most {BLOCKS[-1]}, but these have {size}")


def of(dtype: str, block: int) -> Variant:
    pointer = f"*{TRITON_TYPES[dtype]}"
    return variant(
        "gated_norm",
        KERNEL,
        (*(pointer,) * 4, *("i32",) * 5, "fp32"),
        {"ROWS": TILE // block, "BLOCK": block},
    )
