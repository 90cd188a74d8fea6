"""Cache write in plain torch."""

from __future__ import annotations

import torch
from torch import Tensor


def cache_write(
    key: Tensor,
    value: Tensor,
    key_cache: Tensor,
    value_cache: Tensor,
    slot_mapping: Tensor,
    key_scale: float = 1.0,
    value_scale: float = 1.0,
) -> None:
    """Write `key` and `value` [T, kv_heads, head_dim], of any stride between tokens, into the caches [blocks,
    block_size, kv_heads, head_dim] *in place*.

    A cache of float8_e4m3fn holds x * (1 / scale), clamped to what the format can hold (448) and rounded to nearest
    even; for any other dtype the scales are 1. `slot_mapping` [T], int64, is block * block_size + offset of each token,
    or -1 for a token that is padding and is not written. Slots other than -1 are distinct.
    """
    if bool(slot_mapping.lt(0).any()):
        written = slot_mapping >= 0
        key, value, slot_mapping = key[written], value[written], slot_mapping[written]
    _write(key, key_cache, slot_mapping, key_scale)
    _write(value, value_cache, slot_mapping, value_scale)


def _write(x: Tensor, cache: Tensor, slot_mapping: Tensor, scale: float) -> None:
    slots = cache.flatten(0, 1)
    if cache.dtype == torch.float8_e4m3fn:
        most = torch.finfo(cache.dtype).max
        x = (x.float() * (1.0 / scale)).clamp(-most, most).to(cache.dtype)
        slots.view(torch.uint8).index_copy_(0, slot_mapping, x.view(torch.uint8))
    else:
        slots.index_copy_(0, slot_mapping, x.to(cache.dtype))
