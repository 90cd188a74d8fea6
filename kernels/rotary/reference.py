"""Rotary embedding in plain torch, in the "rotate half" layout of Hugging Face checkpoints."""

from __future__ import annotations

import torch
from torch import Tensor


def rotary(x: Tensor, positions: Tensor, cos_sin: Tensor) -> None:
    """Turn `x` *in place*: dimension pairs (i, i + R/2) by the angle of their token's position.

    Args:
        x: [T, heads, head_dim]. q and k may be handed in together as neighbouring heads of one tensor. Dimensions
            from R on stay.
        positions: [T], int64, each within the table.
        cos_sin: [max_position, R], cosines then sines, from `frequencies.cos_sin_table`.
    """
    half = cos_sin.shape[-1] // 2
    cos, sin = cos_sin[positions].unsqueeze(1).split(half, dim=-1)  # [T, 1, R/2]
    first, second = x[..., :half], x[..., half : 2 * half]
    turned = torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1)
    x[..., : 2 * half] = turned
