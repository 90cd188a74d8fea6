"""Heads to attention and its cache, in plain torch."""

from __future__ import annotations

import torch
from torch import Tensor

from kernels.rms_norm.reference import normed


def rotary_cache(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    positions: Tensor,
    cos_sin: Tensor,
    key_cache: Tensor,
    value_cache: Tensor,
    slot_mapping: Tensor,
    norms: tuple[Tensor, Tensor] | None = None,
    eps: float = 0.0,
    interleaved: bool = False,
    key_scale: float = 1.0,
    value_scale: float = 1.0,
    offset: float = 0.0,
) -> None:
    """Normalise and turn the heads of `query` *in place*, and write those of `key`, normalised and turned too, and of
    `value` into the caches. What `key` holds afterwards is undefined.

    Args:
        query: [T, heads, head_dim], of any stride between tokens, as are `key` and `value` [T, kv_heads, head_dim].
        positions: [T], int64, each within the table.
        cos_sin: [max_position, R], cosines then sines, from `frequencies.cos_sin_table`. Pairs of dimensions turn by
            the angle of their token's position; dimensions from R on stay.
        key_cache, value_cache: [blocks, block_size, kv_heads, head_dim]. One of float8_e4m3fn holds x * (1 / scale),
            clamped to what the format can hold (448) and rounded to nearest even; for any other dtype the scales are 1.
        slot_mapping: [T], int64, block * block_size + offset of each token, or -1 for a token that is padding and is
            not written. Slots other than -1 are distinct.
        norms: the weights [head_dim] of an RMS norm, with `eps` and `offset`, of each head of `query` and of `key`.
        interleaved: the pairs are (2i, 2i + 1), as in GPT-J; else (i, i + R/2), as in Hugging Face's checkpoints.
    """
    if norms is not None:
        query.copy_(normed(query, norms[0], eps, offset))
        key = normed(key, norms[1], eps, offset)
    for heads in (query, key):
        turn(heads, positions, cos_sin, interleaved)
    if bool(slot_mapping.lt(0).any()):
        written = slot_mapping >= 0
        key, value, slot_mapping = key[written], value[written], slot_mapping[written]
    write(key, key_cache, slot_mapping, key_scale)
    write(value, value_cache, slot_mapping, value_scale)


def turn(x: Tensor, positions: Tensor, cos_sin: Tensor, interleaved: bool) -> None:
    """Turn the leading dimensions of heads `x` [T, heads, head_dim] in place."""
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


def write(x: Tensor, cache: Tensor, slot_mapping: Tensor, scale: float = 1.0) -> None:
    """`x` [T, ...] into the slots of `cache` [blocks, block_size, ...]."""
    slots = cache.flatten(0, 1)
    if cache.dtype == torch.float8_e4m3fn:
        most = torch.finfo(cache.dtype).max
        x = (x.float() * (1.0 / scale)).clamp(-most, most).to(cache.dtype)
        slots.view(torch.uint8).index_copy_(0, slot_mapping, x.view(torch.uint8))
    else:
        slots.index_copy_(0, slot_mapping, x.to(cache.dtype))
