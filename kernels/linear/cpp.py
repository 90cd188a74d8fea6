"""Linear on a processor that multiplies pairs of bfloat16, by `kernels/cpu/linear.cpp`, with weights packed for it."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from kernels.cpu.library import functions, threads
from kernels.gated_activation.reference import gated_activation
from kernels.linear import reference

_pack, _multiply = functions().ingot_pack, functions().ingot_linear
PANEL = 64
"""Outputs that are packed together."""


def prepare(weight: Tensor) -> Tensor:
    """A copy of `weight` [O, I], I even: pairs of its numbers as int32 [O, I / 2], in the order in which `linear` reads
    them. Behind them lie those of rows that make the last panel whole."""
    weight = weight.contiguous()
    outputs, inputs = weight.shape
    packed = weight.new_empty((-(-outputs // PANEL) * PANEL, inputs // 2), dtype=torch.int32)
    _pack(packed.data_ptr(), weight.data_ptr(), outputs, inputs, threads())
    return packed[:outputs]


def linear(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    activation: str = "",
    limit: float | None = None,
    activate: Callable[..., Tensor] = gated_activation,
    out: Tensor | None = None,
) -> Tensor:
    """As `reference.linear`, of bfloat16; `weight` may have gone through `prepare`."""
    if weight.dtype is not torch.int32:
        return reference.linear(x, weight, bias, activation, limit, activate, out)
    x = x.contiguous()
    (tokens, inputs), outputs = x.shape, weight.shape[0]
    product = x.new_empty((tokens, outputs)) if out is None else out
    _multiply(
        x.data_ptr(), weight.data_ptr(), None if bias is None else bias.data_ptr(), product.data_ptr(),
        product.dtype is torch.float32, x.stride(0), tokens, outputs, inputs, threads(),
    )  # fmt: skip
    return activate(product, activation, limit) if activation else product
