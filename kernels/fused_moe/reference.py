"""Mixture of experts in plain torch: one expert after the other, each over the tokens routed to it."""

from __future__ import annotations

from itertools import pairwise

import torch
from torch import Tensor
from torch.nn.functional import linear

from kernels.float4 import multiplied_out
from kernels.fp8_linear.reference import dequantise
from kernels.fp8_linear.rounded import Rounded, rows_of
from kernels.fused_moe.by_expert import Sorted
from kernels.gated_activation.reference import gated_activation


def fused_moe(
    x: Tensor | Rounded,
    weights: Tensor,
    expert_ids: Tensor,
    gate_up: Tensor,
    down: Tensor,
    gate_up_scale: Tensor | None = None,
    down_scale: Tensor | None = None,
    activation: str = "silu",
    limit: float | None = None,
    by_expert: Sorted | None = None,
    added: Tensor | None = None,
) -> Tensor:
    """sum over k of weights[t, k] * down(act(gate(x)) * up(x)) by expert expert_ids[t, k]: [T, H] in the dtype of `x`.

    Args:
        x: [T, H], rounded before or not.
        weights, expert_ids: [T, k] float32 and int32, from `moe_routing`.
        gate_up: [E, 2 * N, H], gate first. down: [E, H, N]. In the dtype of `x`, or in float8_e4m3fn with
        gate_up_scale, down_scale: [E, ceil(2 * N / 128), ceil(H / 128)] and [E, ceil(H / 128), ceil(N / 128)] float32,
            as in `fp8_linear`. With FP8, N is a multiple of 128 or the two halves' blocks would share a scale. Or in
            MXFP4 (`kernels.float4`): bytes [E, 2 * N, H / 2] and [E, H, N / 2], scales [E, 2 * N, H / 32] and
            [E, H, N / 32] float8_e8m0fnu.
        activation, limit: as in `gated_activation`.
        by_expert: what `moe_routing` gave beside the ids, for backends that go by expert.
        added: [T, H] in the dtype of `x`, which is added to the sum before that is rounded.
    """
    x = rows_of(x)
    out = torch.zeros_like(x, dtype=torch.float32) if added is None else added.to(torch.float32, copy=True)
    for expert in expert_ids.unique().tolist():
        tokens, choice = (expert_ids == expert).nonzero(as_tuple=True)
        first = _weight(gate_up, gate_up_scale, expert, x.dtype)
        second = _weight(down, down_scale, expert, x.dtype)
        result = linear(gated_activation(linear(x[tokens], first), activation, limit), second)
        out.index_add_(0, tokens, result.float() * weights[tokens, choice, None])
    return out.to(x.dtype)


def sort(expert_ids: Tensor, num_experts: int, block_m: int) -> Sorted:
    """`Sorted` of `expert_ids` [T, k], with no more blocks than there are."""
    ids = expert_ids.flatten()
    order = ids.sort(stable=True).indices.to(torch.int32)
    ends = ids.bincount(minlength=num_experts).cumsum(0).tolist()
    blocks = [
        [expert, first, min(first + block_m, end), 0]
        for expert, (start, end) in enumerate(pairwise([0, *ends]))
        for first in range(start, end, block_m)
    ]
    return Sorted(order, torch.tensor([[len(blocks), 0, 0, 0], *blocks], dtype=torch.int32, device=ids.device))


def _weight(weight: Tensor, scale: Tensor | None, expert: int, dtype: torch.dtype) -> Tensor:
    if scale is None:
        return weight[expert]
    if weight.dtype == torch.uint8:
        return multiplied_out(weight[expert], scale[expert], dtype)
    return dequantise(weight[expert], scale[expert], dtype)
