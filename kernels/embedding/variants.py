"""The closed set of embedding kernels: one a dtype."""

from __future__ import annotations

from collections.abc import Iterator

from kernels.selection import Context
from kernels.variants import TRITON_TYPES, Variant, variant

KERNEL = "kernels.embedding.triton:embedding_kernel"
UNIT = 8  # row lengths are multiples of it: 16 bytes
BLOCK = 2048  # elements of a row that a program copies: 32 bytes a thread


def variants(arch: int, model: Context | None = None) -> Iterator[Variant]:
    """`arch` does not matter: the kernel only moves bytes."""
    for dtype in ("bfloat16", "float16") if model is None else (model.dtype,):
        yield of(dtype)


def of(dtype: str) -> Variant:
    pointer = f"*{TRITON_TYPES[dtype]}"
    return variant("embedding", KERNEL, ("*i64", pointer, pointer, "i32"), {"BLOCK": BLOCK})
