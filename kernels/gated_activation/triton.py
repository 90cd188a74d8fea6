"""The gated activation as one Triton kernel, computed in float32 and rounded once."""

from __future__ import annotations

import functools

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels.dependent_launch import wait_for_previous
from kernels.gated_activation import ACTIVATIONS, variants
from kernels.launch import cdiv, launch
from kernels.variants import Variant


def gated_activation(gate_up: Tensor, activation: str = "silu", limit: float | None = None) -> Tensor:
    """As `reference.gated_activation`, for bfloat16 and float16. N and the stride between rows are multiples of 8."""
    rows, size = gate_up.shape[0], gate_up.shape[1] // 2
    out = gate_up.new_empty((rows, size))
    if rows:
        variant, chunks = _plan(gate_up.dtype, size, gate_up.stride(0), activation, limit is not None)
        launch(
            gated_activation_kernel, variant, (cdiv(rows, variants.ROWS) * chunks,),
            gate_up, out, rows, size // variants.UNIT, gate_up.stride(0) // variants.UNIT,
            0.0 if limit is None else limit,
        )  # fmt: skip
    return out


@functools.cache
def _plan(dtype: torch.dtype, size: int, stride: int, activation: str, limited: bool) -> tuple[Variant, int]:
    """The variant, and how many programs share a row."""
    if activation not in ACTIVATIONS:
        raise ValueError(f"unknown activation {activation!r} (known: {', '.join(ACTIVATIONS)})")
    assert size % variants.UNIT == 0, f"a width of {size} is not a multiple of {variants.UNIT}"
    assert stride % variants.UNIT == 0, f"a stride of {stride} is not a multiple of {variants.UNIT}"
    return variants.of(str(dtype).removeprefix("torch."), activation, limited), cdiv(size, variants.BLOCK)


@triton.jit(do_not_specialize=["rows", "size8", "stride8", "limit"])
def gated_activation_kernel(
    gate_up_ptr,  # [rows, 2 * size], strided
    out_ptr,  # [rows, size], contiguous
    rows,
    size8,
    stride8,
    limit,
    ACTIVATION: tl.constexpr,
    LIMITED: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    wait_for_previous()
    size = size8 * 8
    chunks = tl.cdiv(size, BLOCK)
    row = tl.program_id(0) // chunks * ROWS + tl.arange(0, ROWS)
    column = tl.program_id(0) % chunks * BLOCK + tl.arange(0, BLOCK)
    inside = (row < rows)[:, None] & (column < size)[None, :]
    row = row.to(tl.int64)[:, None]
    start = gate_up_ptr + row * (stride8 * 8) + column[None, :]
    gate = tl.load(start, mask=inside, other=0.0).to(tl.float32)
    up = tl.load(start + size, mask=inside, other=0.0).to(tl.float32)
    result = activated(gate, up, limit, ACTIVATION, LIMITED)
    tl.store(out_ptr + row * size + column[None, :], result.to(out_ptr.dtype.element_ty), mask=inside)


@triton.jit
def activated(gate, up, limit, ACTIVATION: tl.constexpr, LIMITED: tl.constexpr):
    """act(gate) * up, both in float32, clamped before where LIMITED."""
    if LIMITED:  # NaN stays NaN, as in torch, so that a damaged model is noticed
        gate = tl.minimum(gate, limit, propagate_nan=tl.PropagateNan.ALL)
        up = tl.clamp(up, -limit, limit, propagate_nan=tl.PropagateNan.ALL)
    if ACTIVATION == "silu":
        act = gate * tl.sigmoid(gate)
    elif ACTIVATION == "gelu":
        act = 0.5 * gate * (1.0 + tl.erf(gate * 0.7071067811865476))
    else:  # "gelu_tanh", by (1 + tanh(u)) / 2 = sigmoid(2 u)
        act = gate * tl.sigmoid(1.5957691216057308 * (gate + 0.044715 * gate * gate * gate))
    return act * up


@triton.jit
def rows_in_turn(first, columns, WIDTH: tl.constexpr):
    """Of a weight with `columns` rows of gate and then as many of up: those of WIDTH columns from `first` on, and
    whether there are such columns. Gate and up take turns by eight, so that the matrix units leave both of a column to
    the same thread. What lies outside is the last row again."""
    n = tl.arange(0, 2 * WIDTH)
    column = first + n // 16 * 8 + n % 8
    return tl.minimum(column, columns - 1) + n // 8 % 2 * columns, column < columns


@triton.jit
def gate_and_up(product, ROWS: tl.constexpr, WIDTH: tl.constexpr):
    """[ROWS, 2 * WIDTH] by `rows_in_turn` -> gate and up, [ROWS, WIDTH] each."""
    gate, up = tl.split(tl.permute(tl.reshape(product, [ROWS, WIDTH // 8, 2, 8]), (0, 1, 3, 2)))
    return tl.reshape(gate, [ROWS, WIDTH]), tl.reshape(up, [ROWS, WIDTH])
