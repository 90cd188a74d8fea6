"""What an op would launch, without running it: for tests of what its `variants.py` declares."""

from __future__ import annotations

import importlib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from types import ModuleType

import pytest
import torch

from kernels.context import Context
from kernels.launch import launching_for
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


def launched_by_cases(op: str, arch: int, context: Context | None) -> set[Variant]:
    """The variants that the Triton kernels of `kernels/<op>` launch for all its cases, whose tensors are the CPU's."""
    backend = importlib.import_module(f"kernels.{op}.triton")
    launched: set[Variant] = set()
    with launching_for(arch), pytest.MonkeyPatch.context() as patch:
        patch.setattr(backend, "launch", lambda kernel, variant, *_: launched.add(variant))
        for case in importlib.import_module(f"kernels.{op}.cases").cases(arch, context):
            case.run(getattr(backend, op), torch.device("cpu"))
    return launched


def _type(argument: object) -> str:
    if isinstance(argument, torch.Tensor):
        assert argument.data_ptr() % 16 == 0
        return _TYPES[argument.dtype]
    if isinstance(argument, int):
        assert -(1 << 31) <= argument < 1 << 31
        return "i32"
    assert isinstance(argument, float)
    return "fp32"
