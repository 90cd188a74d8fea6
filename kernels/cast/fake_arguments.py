"""Arguments for a launch that runs nothing: of the types that a variant declares."""

from __future__ import annotations

from triton.runtime.jit import MockTensor

from kernels.launch import POINTERS
from kernels.variants import Variant

# Any number does: their values have no part in a variant.
_NUMBERS = {"i32": 32, "fp32": 0.5}


def fake_arguments(variant: Variant) -> list[MockTensor | int | float]:
    return [MockTensor(POINTERS[kind]) if kind.startswith("*") else _NUMBERS[kind] for kind in variant.arguments]
