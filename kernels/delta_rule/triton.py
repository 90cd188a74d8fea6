"""The gated delta rule in Triton: one launch for sequences that decode, drafts among them or not, and two for prefills.

A prefill's first launch computes of every chunk what does not depend on the state, all chunks at once; the second takes
the state from chunk to chunk, which leaves it two short products behind one another a chunk. What a chunk reads by its
queries is put together before (`readers` of `prepare_kernel`), so that no state between chunks is ever written.
"""

from __future__ import annotations

import functools

import torch
from torch import Tensor

from kernels.chains.rounds import Chains
from kernels.delta_rule import variants
from kernels.delta_rule.reference import Kept
from kernels.delta_rule.triton_kernels import chain_kernel, decode_kernel, prepare_kernel, scan_kernel
from kernels.launch import architecture, cdiv, launch
from kernels.paged_attention.metadata import AttentionMetadata

_decode = functools.cache(variants.decode)
_chain = functools.cache(variants.chain)
_prepare = functools.cache(variants.prepare)
_scan = functools.cache(variants.scan)


def delta_rule(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    a: Tensor,
    b: Tensor,
    a_log: Tensor,
    dt_bias: Tensor,
    state: Tensor,
    rows: Tensor,
    metadata: AttentionMetadata,
    chains: Chains | None = None,
    kept: Kept | None = None,
) -> Tensor:
    """As `reference.delta_rule`, for bfloat16 and float16 and keys of `variants.KEY_DIMS`.

    The heads of a token are neighbours; head sizes and the strides between tokens are multiples of 8, but for `a` and
    `b`, whose strides are equal. The rows of `state` may be apart, by a multiple of 8, and so may those of
    all that is kept, which are equally far apart.
    """
    (heads, value_dim), key_dim = value.shape[1:], key.shape[2]
    dtype, arch, unit = str(query.dtype).removeprefix("torch."), architecture(), variants.UNIT
    strides = [x.stride(0) for x in (query, key, value)]
    assert all(count % unit == 0 for count in (value_dim, *strides)), f"tokens {strides} apart, values of {value_dim}"
    assert query.stride(1) == key.stride(1) == key_dim, "heads of keys lie apart"
    assert value.stride(1) == value_dim, "heads of values lie apart"
    assert a.stride() == b.stride() == (a.stride(0), 1), "a and b differ in their strides"
    assert state.stride()[1:] == (key_dim * value_dim, value_dim, 1), "a row of states is not contiguous"
    assert state.stride(0) % unit == 0, f"rows of states {state.stride(0)} apart"
    out = torch.empty(value.shape, dtype=query.dtype, device=query.device)
    decodes = metadata.num_decodes
    prefills = len(metadata.query_lens) - decodes
    gates = a, b, a_log, dt_bias
    sizes = heads, heads // key.shape[1], value_dim // unit
    strides8 = [stride // unit for stride in strides]
    if decodes and chains is not None and kept is not None:
        (kept_stride,) = {each.stride(0) for each in kept}
        assert kept_stride % unit == 0, f"rows of what is kept {kept_stride} apart"
        launch(
            chain_kernel, _chain(dtype, key_dim), (cdiv(value_dim, variants.DECODE_VALUES), heads, decodes),
            query, key, value, *gates, state, rows, out, *kept, metadata.seq_lens, *chains, *sizes, *strides8,
            a.stride(0), state.stride(0) // unit, kept_stride // unit, kept.keys.shape[1],
        )  # fmt: skip
    elif decodes:
        launch(
            decode_kernel, _decode(dtype, key_dim), (cdiv(value_dim, variants.DECODE_VALUES), heads, decodes),
            query, key, value, *gates, state, rows, out, *sizes, *strides8, a.stride(0), state.stride(0) // unit,
        )  # fmt: skip
    if prefills:
        tokens = len(query) - decodes
        tiles = tokens // variants.CHUNK + prefills
        readers = query.new_empty((tokens, heads, 2, key_dim))
        corrections = query.new_empty((tokens, heads, value_dim))
        scales = torch.empty((tokens, heads), dtype=torch.float32, device=query.device)
        shrinks = torch.empty((tiles, heads), dtype=torch.float32, device=query.device)
        starts = metadata.query_start_loc
        launch(
            prepare_kernel, _prepare(dtype, key_dim), (heads, tiles),
            query, key, value, *gates, starts, readers, corrections, out, scales, shrinks,
            decodes, prefills, *sizes, *strides8, a.stride(0),
        )  # fmt: skip
        variant = _scan(arch, dtype, key_dim)
        launch(
            scan_kernel, variant, (cdiv(value_dim, int(variant.options["VALUES"])), heads, prefills),
            key, readers, corrections, out, scales, shrinks, state, rows, starts,
            decodes, *sizes, strides8[1], state.stride(0) // unit,
        )  # fmt: skip
    return out
