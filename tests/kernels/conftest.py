"""Triton's interpreter, patched where its results differ from a GPU's, and where it only takes time."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Iterator
from types import ModuleType

import numpy as np
import pytest
import torch
import triton.language as tl
from triton.runtime import interpreter


@pytest.fixture(autouse=True)
def _builtins_found_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """At each call from one function of Triton's to another, the interpreter looks through all members of its language
    for those that it has to replace, sorted by name: a thousand times a kernel, and always the same ones."""

    def patch_builtin(where, builder, scope):
        for name in _builtins(where):
            if tl.core.is_builtin(member := getattr(where, name)):  # and not replaced yet
                interpreter._patch_attr(where, name, member, builder, scope)

    monkeypatch.setattr(interpreter, "_patch_builtin", patch_builtin)


@functools.cache
def _builtins(where: ModuleType | type) -> list[str]:
    """By name. Nothing is replaced when this is asked for the first time."""
    return [name for name, member in inspect.getmembers(where) if tl.core.is_builtin(member)]


@pytest.fixture(autouse=True)
def _products_in_float32(monkeypatch: pytest.MonkeyPatch) -> None:
    """The interpreter keeps bfloat16 as 16-bit integers and would multiply those; a GPU multiplies exactly and sums in
    float32."""

    def create_dot(self, a, b, d, input_precision, max_num_imprecise_acc):
        product = np.matmul(_float32(a), _float32(b))
        return interpreter.TensorHandle((product + d.data).astype(d.data.dtype), d.dtype.scalar)

    monkeypatch.setattr(interpreter.InterpreterBuilder, "create_dot", create_dot)


def _float32(handle):
    if handle.dtype.scalar == tl.float32:
        return handle.data
    if handle.dtype.scalar == tl.bfloat16:
        return (handle.data.astype(np.uint32) << 16).view(np.float32)
    if handle.dtype.primitive_bitwidth == 8 and handle.dtype.is_floating():
        half = interpreter._convert_float(handle.data, handle.dtype, tl.float16, None).view(np.float16)
        return half.astype(np.float32)
    return handle.data.astype(np.float32)


@pytest.fixture(autouse=True)
def _rounding_to_nearest(monkeypatch: pytest.MonkeyPatch) -> None:
    """The interpreter cuts float32 off to bfloat16, and has its own ideas of float8_e4m3fn; a GPU rounds to nearest
    even, and clamps to the 448 that e4m3 can hold."""
    builder = interpreter.InterpreterBuilder
    cast, convert = builder.cast_impl, builder.create_fp_to_fp

    def cast_impl(self, src, dst_type):
        return _rounded(src, dst_type) if _is_rounding(src, dst_type) else cast(self, src, dst_type)

    def create_fp_to_fp(self, src, dst_type, mode):
        return _rounded(src, dst_type) if _is_rounding(src, dst_type) else convert(self, src, dst_type, mode)

    monkeypatch.setattr(builder, "cast_impl", cast_impl)
    monkeypatch.setattr(builder, "create_fp_to_fp", create_fp_to_fp)


def _is_rounding(src, dst_type) -> bool:
    return src.dtype.scalar == tl.float32 and dst_type.scalar in (tl.bfloat16, tl.float8e4nv)


def _rounded(src, dst_type):
    wide = torch.from_numpy(np.ascontiguousarray(src.data))
    if dst_type.scalar == tl.bfloat16:
        data = wide.bfloat16().view(torch.uint16).numpy()
    else:
        data = wide.clamp(-448.0, 448.0).to(torch.float8_e4m3fn).view(torch.uint8).numpy()
    return interpreter.TensorHandle(data, dst_type.scalar)


@pytest.fixture(autouse=True)
def _poisoned_memory() -> Iterator[None]:
    """New tensors hold NaN (integers their largest value), so that an element that a kernel leaves unwritten shows."""
    torch.use_deterministic_algorithms(True, warn_only=True)
    assert torch.utils.deterministic.fill_uninitialized_memory  # type: ignore[attr-defined]
    yield
    torch.use_deterministic_algorithms(False)
