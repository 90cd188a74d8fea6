"""Queries and latents to attention and its cache, in plain torch."""

from __future__ import annotations

import torch
from torch import Tensor

from kernels.rms_norm.reference import normed
from kernels.rotary_cache.reference import turn, write


def latent_cache(
    query: Tensor,
    latent: Tensor,
    positions: Tensor,
    cos_sin: Tensor,
    weight: Tensor,
    eps: float,
    cache: Tensor,
    slot_mapping: Tensor,
) -> None:
    """Turn the last dimensions of each head of `query` *in place*, and write each token's latent into the cache: its
    content normalised, its key for positions turned (DeepSeek-AI, 2024, "DeepSeek-V2"). What `latent` holds afterwards
    is undefined.

    Args:
        query: [T, heads, nope + rope], of any stride between tokens.
        latent: [T, rank + rope], of any stride between tokens.
        positions: [T], int64, each within the table.
        cos_sin: [max_position, rope], cosines then sines, from `rotary_cache.frequencies.cos_sin_table`. The pairs
            (2i, 2i + 1) of the last `rope` dimensions turn by the angle of their token's position.
        weight: [rank], of the RMS norm of the latent's content, with `eps`.
        cache: [blocks, block_size, rank + rope].
        slot_mapping: [T], int64, block * block_size + offset of each token, or -1 for a token that is padding and is
            not written. Slots other than -1 are distinct.
    """
    rank, rope = weight.shape[0], cos_sin.shape[-1]
    content, key = latent.split((rank, rope), dim=-1)
    turn(query[..., -rope:], positions, cos_sin, interleaved=True)
    turn(key.unsqueeze(1), positions, cos_sin, interleaved=True)
    entries = torch.cat((normed(content, weight, eps), key), dim=-1)
    if bool(slot_mapping.lt(0).any()):
        written = slot_mapping >= 0
        entries, slot_mapping = entries[written], slot_mapping[written]
    write(entries, cache, slot_mapping)
