"""The closed set of mHC's kernels: by dtype, and by how many streams there are."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from kernels.selection import Context
from kernels.variants import TRITON_TYPES, Variant, variant

KERNEL: Final = "kernels.mhc_pre.triton:mhc_pre_kernel"
UNIT: Final = 8  # hidden sizes are multiples of it: 16 bytes
BLOCK: Final = 1024  # numbers of each stream that a program takes at a time
STREAMS: Final = (2, 4)
DTYPES: Final = ("bfloat16", "float16")


def variants(arch: int, model: Context | None = None) -> Iterator[Variant]:
    """`arch` does not matter: the kernel only moves bytes, beside few numbers for each token."""
    if model is not None:
        yield of(model.dtype, model.residual_streams)
        return
    yield from (of(dtype, streams) for dtype in DTYPES for streams in STREAMS)


def of(dtype: str, streams: int) -> Variant:
    pointer = f"*{TRITON_TYPES[dtype]}"
    return variant(
        "mhc_pre",
        KERNEL,
        (pointer, "*fp32", "*fp32", "*fp32", pointer, "*fp32", "*fp32", "i32", "i32", "fp32", "fp32"),
        {"STREAMS": streams, "BLOCK": BLOCK},
    )
