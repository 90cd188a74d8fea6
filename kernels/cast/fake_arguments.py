"""Arguments of the types a variant declares, for a launch that runs nothing."""

from __future__ import annotations

from triton.runtime.jit import MockTensor

from kernels.launch import POINTERS
from kernels.variants import Variant

# Any number will do: a variant does not depend on their values.
_NUMBERS = {"i32": 32, "fp32": 0.5}


def fake_arguments(variant: Variant) -> list[MockTensor | int | float]:
    return [MockTensor(POINTERS[kind]) if kind.startswith("*") else _NUMBERS[kind] for kind in variant.arguments]
