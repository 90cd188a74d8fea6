"""Triton's interpreter, mended where it computes something else than a GPU would."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
import torch
import triton.language as tl
from triton.runtime import interpreter


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
def _poisoned_memory() -> Iterator[None]:
    """New tensors hold NaN (integers their largest value), so that an element that a kernel leaves unwritten shows."""
    torch.use_deterministic_algorithms(True, warn_only=True)
    assert torch.utils.deterministic.fill_uninitialized_memory  # type: ignore[attr-defined]
    yield
    torch.use_deterministic_algorithms(False)
