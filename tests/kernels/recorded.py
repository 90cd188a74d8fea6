"""What an op would launch, without running it: for tests of what its `variants.py` declares."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from types import ModuleType

import pytest
import torch

from kernels.variants import TRITON_TYPES, Variant

_TYPES = {getattr(torch, name): f"*{triton}" for name, triton in TRITON_TYPES.items()} | {
    torch.uint8: "*u8",
    torch.int32: "*i32",
    torch.int64: "*i64",
}


@contextmanager
def recorded(modules: Iterable[ModuleType]) -> Iterator[set[Variant]]:
    """The variants that `modules` launch meanwhile. Each launch's arguments must be of the declared types."""
    launched: set[Variant] = set()

    def record(kernel, variant, grid, *arguments):
        found = tuple(_type(argument) for argument in arguments)
        assert found == variant.arguments, f"{variant.name} was given {found}"
        assert all(0 < size < 1 << 31 for size in grid)
        launched.add(variant)

    with pytest.MonkeyPatch.context() as patch:
        for module in modules:
            patch.setattr(module, "launch", record)
        yield launched


def _type(argument: object) -> str:
    if isinstance(argument, torch.Tensor):
        assert argument.data_ptr() % 16 == 0
        return _TYPES[argument.dtype]
    if isinstance(argument, int):
        assert -(1 << 31) <= argument < 1 << 31
        return "i32"
    assert isinstance(argument, float)
    return "fp32"
