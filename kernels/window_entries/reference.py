"""Queries and entries of DeepSeek-V4's attention, in plain torch."""

from __future__ import annotations

import torch
from torch import Tensor

from kernels.rms_norm.reference import normed
from kernels.rotary_cache.reference import turn


def window_entries(
    query: Tensor, entry: Tensor, positions: Tensor, cos_sin: Tensor, weight: Tensor, eps: float
) -> tuple[Tensor, Tensor]:
    """Each head of `query` [T, heads, dim] divided by its root mean square, and `entry` [T, dim] normed with `weight`
    [dim]; then the last R numbers of both are turned, in neighbouring pairs. `cos_sin` is [max_position, R], from
    `rotary_cache.frequencies.cos_sin_table`. Returns both, new and contiguous."""
    wide = query.float()
    query = (wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + eps)).to(query.dtype)
    entry = normed(entry.contiguous(), weight, eps)
    turn_last(query, positions, cos_sin)
    turn_last(entry.unsqueeze(1), positions, cos_sin)
    return query, entry


def turn_last(x: Tensor, positions: Tensor, cos_sin: Tensor, *, back: bool = False) -> None:
    """Turn the last R dimensions of `x` [T, heads, dim] in place; by the opposite angle if `back`."""
    rope_dim = cos_sin.shape[-1]
    if back:
        half = rope_dim // 2
        cos_sin = torch.cat((cos_sin[:, :half], -cos_sin[:, half:]), dim=-1)
    turn(x[..., -rope_dim:], positions, cos_sin, interleaved=True)
