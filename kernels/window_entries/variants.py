"""The closed set of these kernels: by dtype."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from kernels.packed_entries.variants import DIM, ROPE
from kernels.selection import Context
from kernels.variants import TRITON_TYPES, Variant, variant

KERNEL: Final = "kernels.window_entries.triton:window_entries_kernel"
DTYPES: Final = ("bfloat16", "float16")
ROWS: Final = 8  # heads that a program takes


def variants(arch: int, model: Context | None = None) -> Iterator[Variant]:
    """`arch` does not matter: the kernel only moves bytes."""
    yield from (of(dtype) for dtype in (DTYPES if model is None else (model.dtype,)))


def of(dtype: str) -> Variant:
    pointer = f"*{TRITON_TYPES[dtype]}"
    return variant(
        "window_entries",
        KERNEL,
        (pointer, pointer, pointer, "*i64", "*fp32", pointer, pointer, "i32", "i32", "i32", "fp32"),
        {"DIM": DIM, "ROPE": ROPE, "ROWS": ROWS},
    )
