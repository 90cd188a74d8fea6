"""Rotary embedding in plain torch."""

from __future__ import annotations

import torch
from torch import Tensor


def rotary(x: Tensor, positions: Tensor, cos_sin: Tensor, interleaved: bool = False) -> None:
    """Turn `x` *in place*: pairs of dimensions by the angle of their token's position.

    Args:
        x: [T, heads, head_dim], of any stride between tokens and heads. q and k may be handed in together as
            neighbouring heads of one tensor. Dimensions from R on stay.
        positions: [T], int64, each within the table.
        cos_sin: [max_position, R], cosines then sines, from `frequencies.cos_sin_table`.
        interleaved: the pairs are (2i, 2i + 1), as in GPT-J; else (i, i + R/2), as in Hugging Face's checkpoints.
    """
    half = cos_sin.shape[-1] // 2
    cos, sin = cos_sin.index_select(0, positions).unsqueeze(1).split(half, dim=-1)  # [T, 1, R/2]
    turning = x[..., : 2 * half]
    if interleaved:
        first, second = turning[..., 0::2], turning[..., 1::2]
        turned = torch.stack((first * cos - second * sin, second * cos + first * sin), dim=-1).flatten(-2)
    else:
        first, second = turning[..., :half], turning[..., half:]
        turned = torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1)
    turning.copy_(turned)
