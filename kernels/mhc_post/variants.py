"""The closed set of the kernels that go on to the next streams: by dtype, and by how many there are."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from kernels.mhc_pre.variants import DTYPES, STREAMS, UNIT
from kernels.selection import Context
from kernels.variants import TRITON_TYPES, Variant, variant

__all__ = ["BLOCK", "STREAMS", "UNIT", "of", "variants"]

KERNEL: Final = "kernels.mhc_post.triton:mhc_post_kernel"
BLOCK: Final = 1024  # numbers of each stream that a program takes


def variants(arch: int, model: Context | None = None) -> Iterator[Variant]:
    """`arch` does not matter: the kernel only moves bytes."""
    if model is not None:
        yield of(model.dtype, model.residual_streams)
        return
    yield from (of(dtype, streams) for dtype in DTYPES for streams in STREAMS)


def of(dtype: str, streams: int) -> Variant:
    pointer = f"*{TRITON_TYPES[dtype]}"
    return variant(
        "mhc_post",
        KERNEL,
        (pointer, pointer, "*fp32", "*fp32", pointer, "i32"),
        {"STREAMS": streams, "BLOCK": BLOCK},
    )
