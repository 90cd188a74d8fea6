"""An indexer's queries and keys to its choice and its cache, in plain torch.

As DeepSeek's inference code has it (DeepSeek-V3.2, `inference/model.py`): queries and keys go through a Hadamard
transform, which spreads outliers and leaves their products as they are, and are rounded to e4m3 with scales that are
powers of two. In float32 neither is done.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import layer_norm

from kernels.float4 import multiplied_out
from kernels.index_cache.norm import KeyNorm
from kernels.indexer import GROUP, key_bytes
from kernels.rotary_cache.reference import turn, write

LARGEST = 448.0  # that e4m3 holds
SMALLEST = 1e-4  # that a group's largest number counts as


def index_cache(
    query: Tensor,
    key: Tensor,
    weights: Tensor,
    positions: Tensor,
    cos_sin: Tensor,
    norm: KeyNorm,
    cache: Tensor,
    slot_mapping: Tensor,
    interleaved: bool,
) -> tuple[Tensor, Tensor]:
    """Turn the queries of an indexer, and write each token's key into the cache, normalised and turned. What `query`
    and `key` hold afterwards is undefined.

    Args:
        query: [Q, heads, head_dim], contiguous, of the first Q tokens; `head_dim` is a power of two.
        key: [T, head_dim], of any stride between tokens.
        weights: [Q, heads] float32, of a query's heads.
        positions: [T], int64, each within the table.
        cos_sin: [max_position, R], from `rotary_cache.frequencies.cos_sin_table`; the first R numbers turn.
        cache: [blocks, block_size, head_dim] float32; or pages [blocks, block_size * key_bytes(head_dim)] uint8: the
            codes of all keys of a block in e4m3, then their scales in float32, one for each 128 numbers.
        slot_mapping: [T], int64, block * block_size + offset of each token, or -1 for a token that is padding and is
            not written. Slots other than -1 are distinct.
        interleaved: the pairs that turn are (2i, 2i + 1); else (i, i + R/2).

    Returns:
        the queries as `indexer` takes them, [Q, heads, head_dim] as the cache has its keys: float32, or e4m3; and their
        weights, [Q, heads] float32, times heads^-0.5 * head_dim^-0.5 and the scales of the queries.
    """
    heads, dim = query.shape[1:]
    key = layer_norm(key.float(), (dim,), norm.weight, norm.bias, norm.eps).to(key.dtype)
    turn(query, positions[: len(query)], cos_sin, interleaved)
    turn(key.unsqueeze(1), positions, cos_sin, interleaved)
    weights = weights * (heads**-0.5 * dim**-0.5)
    written = slot_mapping >= 0
    if cache.dtype != torch.uint8:
        write(key[written], cache, slot_mapping[written])
        return query, weights
    codes, scales = quantise(hadamard(key[written]))
    write_keys(codes, scales, cache, slot_mapping[written])
    # A head of more than 128 numbers has several scales: the largest serves for all of it.
    codes, scale = quantise(hadamard(query), group=dim)
    return codes, weights * scale.squeeze(-1)


def hadamard(x: Tensor) -> Tensor:
    """The last dimension times the orthonormal matrix whose signs are the parity of the bits that row and column share
    (Sylvester, 1867)."""
    dim = x.shape[-1]
    signs = torch.ones(1, 1, device=x.device)
    while signs.shape[0] < dim:
        signs = torch.cat((torch.cat((signs, signs), 1), torch.cat((signs, -signs), 1)))
    transformed: Tensor = (x.float() @ signs) * dim**-0.5
    return transformed.to(x.dtype)


def quantise(x: Tensor, group: int = GROUP) -> tuple[Tensor, Tensor]:
    """[..., dim] -> e4m3 of the same shape, and float32 scales [..., ceil(dim / group)], powers of two."""
    group = min(group, x.shape[-1])
    grouped = x.float().unflatten(-1, (-1, group))
    wanted = grouped.abs().amax(-1, keepdim=True).clamp(min=SMALLEST) * (1 / LARGEST)
    bits = wanted.view(torch.int32)
    scales = ((bits + 0x7FFFFF) & 0x7F800000).view(torch.float32)  # up to the next power of two
    codes = (grouped / scales).clamp(-LARGEST, LARGEST).to(torch.float8_e4m3fn)
    return codes.flatten(-2), scales.squeeze(-1)


def write_keys(codes: Tensor, scales: Tensor, cache: Tensor, slots: Tensor) -> None:
    """Keys [N, dim] and their scales [N, groups] into pages of `cache`: of `quantise`, or bytes [N, dim / 2] of
    `float4.quantise`."""
    mxfp4 = codes.dtype == torch.uint8
    keys, of_keys = pages(cache, codes.shape[-1] * (1 + mxfp4), mxfp4)
    block, offset = slots // keys.shape[1], slots % keys.shape[1]
    keys.view(torch.uint8)[block, offset] = codes.view(torch.uint8)
    of_keys[block, offset] = scales


def key_rows(cache: Tensor, dim: int, mxfp4: bool = False) -> int:
    """How many keys a block has."""
    return cache.shape[1] if cache.dtype != torch.uint8 else cache.shape[1] // key_bytes(dim, mxfp4)


def pages(cache: Tensor, dim: int, mxfp4: bool = False) -> tuple[Tensor, Tensor]:
    """Views of the keys [blocks, block_size, dim] in e4m3 and their scales [blocks, block_size, groups] in float32; of
    those in MXFP4 bytes of two numbers, [blocks, block_size, dim / 2], and exponents."""
    rows = key_rows(cache, dim, mxfp4)
    codes = rows * (dim // 2 if mxfp4 else dim)
    keys, scales = cache[:, :codes], cache[:, codes:]
    if not mxfp4:
        keys, scales = keys.view(torch.float8_e4m3fn), scales.view(torch.float32)
    return keys.unflatten(1, (rows, -1)), scales.unflatten(1, (rows, -1))


def numbers(keys: Tensor, scales: Tensor) -> Tensor:
    """What `pages` has views of: [..., dim] float32."""
    if keys.dtype == torch.uint8:
        return multiplied_out(keys, scales.contiguous().view(torch.float8_e8m0fnu), torch.float32)
    wide: Tensor = (keys.float().unflatten(-1, (scales.shape[-1], -1)) * scales.unsqueeze(-1)).flatten(-2)
    return wide
