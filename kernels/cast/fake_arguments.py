"""Arguments for a launch that runs nothing: of the types that a variant declares."""

from __future__ import annotations

import torch
from triton.runtime.jit import MockTensor

from kernels.variants import TRITON_TYPES, Variant

_DTYPES = {f"*{triton}": getattr(torch, name) for name, triton in TRITON_TYPES.items()} | {
    "*u8": torch.uint8,
    "*i32": torch.int32,
    "*i64": torch.int64,
}
# Any number does: their values have no part in a variant.
_NUMBERS = {"i32": 32, "fp32": 0.5}


def fake_arguments(variant: Variant) -> list[MockTensor | int | float]:
    return [MockTensor(_DTYPES[kind]) if kind.startswith("*") else _NUMBERS[kind] for kind in variant.arguments]
