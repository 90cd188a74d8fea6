"""The closed set of gated activation kernels: one tile for all widths, by activation, limit and dtype."""

from __future__ import annotations

from collections.abc import Iterator

from kernels.gated_activation import ACTIVATIONS
from kernels.selection import Context
from kernels.variants import TRITON_TYPES, Variant, variant

KERNEL = "kernels.gated_activation.triton:gated_activation_kernel"
UNIT = 8  # widths and strides are multiples of it: 16 bytes
ROWS, BLOCK = 8, 256  # of a program: 512 bytes a row, so that few widths leave threads idle


def variants(arch: int, model: Context | None = None) -> Iterator[Variant]:
    """`arch` does not matter: the kernel only moves bytes."""
    dtypes = ("bfloat16", "float16") if model is None else (model.dtype,)
    activations = ACTIVATIONS if model is None else (model.activation,)
    for dtype in dtypes:
        for activation in activations:
            for limited in (False, True):
                yield of(dtype, activation, limited)


def of(dtype: str, activation: str, limited: bool) -> Variant:
    pointer = f"*{TRITON_TYPES[dtype]}"
    return variant(
        "gated_activation",
        KERNEL,
        (pointer, pointer, "i32", "i32", "i32", "fp32"),
        {"ACTIVATION": activation, "LIMITED": limited, "ROWS": ROWS, "BLOCK": BLOCK},
    )
