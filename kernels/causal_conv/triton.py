"""Causal convolution in Triton: one launch for sequences that decode, drafts among them or not, and two for prefills,
whose tiles all read the state before it changes."""

from __future__ import annotations

import functools

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels.causal_conv import variants
from kernels.chains.rounds import Chains
from kernels.dependent_launch import wait_for_previous
from kernels.launch import cdiv, launch
from kernels.paged_attention.metadata import AttentionMetadata
from kernels.sequence_tiles import sequence_of_tile

_decode = functools.cache(variants.decode)
_chain = functools.cache(variants.chain)
_prefill = functools.cache(variants.prefill)
_last_inputs = functools.cache(variants.last_inputs)


def causal_conv(
    x: Tensor,
    weight: Tensor,
    state: Tensor,
    rows: Tensor,
    metadata: AttentionMetadata,
    chains: Chains | None = None,
    kept: Tensor | None = None,
) -> Tensor:
    """As `reference.causal_conv`, for bfloat16 and float16 and a width of 4.

    Channels are neighbours in `x`; their number, the stride between tokens and those between rows of `state` and of
    `kept` are multiples of 8. `weight` and each row are contiguous.
    """
    tokens, channels = x.shape
    unit = variants.UNIT
    assert weight.shape[1] == variants.WIDTH, f"a width of {weight.shape[1]}"
    assert channels % unit == x.stride(0) % unit == 0, f"{channels} channels, tokens {x.stride(0)} apart"
    assert state.stride()[1:] == (variants.WIDTH - 1, 1), "a row of states is not contiguous"
    assert state.stride(0) % unit == 0, f"rows of states {state.stride(0)} apart"
    dtype = str(x.dtype).removeprefix("torch.")
    out = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    decodes, blocks = metadata.num_decodes, cdiv(channels, variants.BLOCK)
    prefills = len(metadata.query_lens) - decodes
    sizes = channels // unit, x.stride(0) // unit, state.stride(0) // unit
    if decodes and chains is not None and kept is not None:
        assert kept.stride(0) % unit == 0, f"rows of what is kept {kept.stride(0)} apart"
        launch(
            chain_kernel, _chain(dtype), (blocks, decodes),
            x, weight, state, out, kept, rows, metadata.seq_lens, *chains, *sizes, kept.stride(0) // unit,
            kept.shape[1],
        )  # fmt: skip
    elif decodes:
        launch(decode_kernel, _decode(dtype), (blocks, decodes), x, weight, state, out, rows, *sizes)
    if prefills:
        tiles = (tokens - decodes) // variants.ROWS + prefills
        starts = metadata.query_start_loc
        launch(
            prefill_kernel, _prefill(dtype), (blocks, tiles),
            x, weight, state, out, rows, starts, decodes, prefills, *sizes,
        )  # fmt: skip
        launch(
            last_inputs_kernel, _last_inputs(dtype), (blocks, prefills), x, state, rows, starts, decodes, *sizes
        )  # fmt: skip
    return out


@triton.jit(do_not_specialize=["channels8", "stride8", "row_stride8"], do_not_specialize_on_alignment=["rows_ptr"])
def decode_kernel(
    x_ptr,  # [S, channels], tokens strided: one token a sequence
    weight_ptr,  # [channels, WIDTH]
    state_ptr,  # [R, channels, WIDTH - 1], rows strided
    out_ptr,  # [S, channels]
    rows_ptr,  # [S]
    channels8,
    stride8,
    row_stride8,  # of states
    WIDTH: tl.constexpr,
    BLOCK: tl.constexpr,
):
    wait_for_previous()
    channels = channels8 * 8
    channel = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = channel < channels
    seq = tl.program_id(1).to(tl.int64)
    past_ptr = state_ptr + tl.load(rows_ptr + seq) * (row_stride8 * 8) + channel * (WIDTH - 1)
    x = tl.load(x_ptr + seq * (stride8 * 8) + channel, mask=inside, other=0.0)
    total = x.to(tl.float32) * _weight(weight_ptr, channel, WIDTH - 1, inside, WIDTH)
    for i in tl.static_range(WIDTH - 1):
        past = tl.load(past_ptr + i, mask=inside, other=0.0)
        total += past.to(tl.float32) * _weight(weight_ptr, channel, i, inside, WIDTH)
        if i > 0:
            tl.store(past_ptr + (i - 1), past, mask=inside)
    tl.store(past_ptr + (WIDTH - 2), x, mask=inside)
    tl.store(out_ptr + seq * channels + channel, (total * tl.sigmoid(total)).to(x.dtype), mask=inside)


@triton.jit(
    do_not_specialize=["channels8", "stride8", "row_stride8", "kept_stride8", "places"],
    do_not_specialize_on_alignment=["rows_ptr", "seq_lens_ptr", "lens_ptr", "accepted_ptr"],
)
def chain_kernel(
    x_ptr,  # as of decode_kernel, up to out_ptr
    weight_ptr,
    state_ptr,
    out_ptr,
    kept_ptr,  # [R, places, channels], rows strided: each draft's input, at its position modulo places
    rows_ptr,  # [S]
    seq_lens_ptr,  # [S]
    lens_ptr,  # [S], of chains
    accepted_ptr,  # [S]
    channels8,
    stride8,
    row_stride8,  # of states
    kept_stride8,
    places,
    WIDTH: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """A chain: behind what was accepted the known token, and drafts."""
    wait_for_previous()
    tl.static_assert(WIDTH == 4)
    seq = tl.program_id(1).to(tl.int64)
    count = tl.load(lens_ptr + seq)
    if count == 0:
        return
    channels = channels8 * 8
    channel = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = channel < channels
    row = tl.load(rows_ptr + seq)
    position = tl.load(seq_lens_ptr + seq) - 1
    accepted = tl.load(accepted_ptr + seq)
    past_ptr = state_ptr + row * (row_stride8 * 8) + channel * (WIDTH - 1)
    kept_ptr += row * (kept_stride8 * 8) + channel
    third = _before(3, past_ptr, kept_ptr, position, accepted, places, channels, inside, WIDTH)
    second = _before(2, past_ptr, kept_ptr, position, accepted, places, channels, inside, WIDTH)
    first = _before(1, past_ptr, kept_ptr, position, accepted, places, channels, inside, WIDTH)
    for number in range(count):
        x = tl.load(x_ptr + (seq + number) * (stride8 * 8) + channel, mask=inside, other=0.0)
        # In the order of decode_kernel, whose sums these are.
        total = x.to(tl.float32) * _weight(weight_ptr, channel, 3, inside, WIDTH)
        total += third.to(tl.float32) * _weight(weight_ptr, channel, 0, inside, WIDTH)
        total += second.to(tl.float32) * _weight(weight_ptr, channel, 1, inside, WIDTH)
        total += first.to(tl.float32) * _weight(weight_ptr, channel, 2, inside, WIDTH)
        third, second, first = second, first, x
        if number == 0:
            tl.store(past_ptr, third, mask=inside)
            tl.store(past_ptr + 1, second, mask=inside)
            tl.store(past_ptr + 2, first, mask=inside)
        else:
            tl.store(kept_ptr + (position + number) % places * channels, x, mask=inside)
        out = (total * tl.sigmoid(total)).to(x.dtype)
        tl.store(out_ptr + (seq + number) * channels + channel, out, mask=inside)


@triton.jit
def _before(BACK: tl.constexpr, past_ptr, kept_ptr, position, accepted, places, channels, inside, WIDTH: tl.constexpr):
    """The input so many tokens before `position`, of which the last were kept of drafts."""
    was_kept = accepted >= BACK
    kept = tl.load(kept_ptr + (position - BACK + places) % places * channels, mask=inside & was_kept, other=0.0)
    past = tl.load(past_ptr + (WIDTH - 1 - BACK + accepted), mask=inside & (accepted < BACK), other=0.0)
    return tl.where(was_kept, kept, past)


@triton.jit(
    do_not_specialize=["first_seq", "num_seqs", "channels8", "stride8", "row_stride8"],
    do_not_specialize_on_alignment=["rows_ptr", "query_start_ptr"],
)
def prefill_kernel(
    x_ptr,  # [T, channels], tokens strided
    weight_ptr,  # [channels, WIDTH]
    state_ptr,  # [R, channels, WIDTH - 1], rows strided; read only
    out_ptr,  # [T, channels]
    rows_ptr,  # [S]
    query_start_ptr,  # [S + 1]
    first_seq,  # sequences from here on
    num_seqs,
    channels8,
    stride8,
    row_stride8,  # of states
    WIDTH: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    wait_for_previous()
    seq, start, length, first = sequence_of_tile(tl.program_id(1), query_start_ptr, first_seq, num_seqs, ROWS)
    if first >= length:
        return
    channels = channels8 * 8
    channel = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    own = first + tl.arange(0, ROWS)  # of the sequence's tokens
    known = channel < channels
    inside = (own < length)[:, None] & known[None, :]
    start_ptr = x_ptr + start.to(tl.int64) * (stride8 * 8)
    row = tl.load(rows_ptr + first_seq + seq)
    past_ptr = state_ptr + row * (row_stride8 * 8) + channel * (WIDTH - 1) + (WIDTH - 1)  # of token 0
    total = tl.zeros((ROWS, BLOCK), dtype=tl.float32)
    for i in tl.static_range(WIDTH):
        token = own + (i - (WIDTH - 1))
        x = tl.load(
            start_ptr + token.to(tl.int64)[:, None] * (stride8 * 8) + channel[None, :],
            mask=inside & (token >= 0)[:, None], other=0.0,
        )  # fmt: skip
        if first == 0:
            past = tl.load(past_ptr[None, :] + token[:, None], mask=inside & (token < 0)[:, None], other=0.0)
            x = tl.where((token < 0)[:, None], past, x)
        total += x.to(tl.float32) * _weight(weight_ptr, channel, i, known, WIDTH)[None, :]
    target = out_ptr + (start + own).to(tl.int64)[:, None] * channels + channel[None, :]
    tl.store(target, (total * tl.sigmoid(total)).to(out_ptr.dtype.element_ty), mask=inside)


@triton.jit(
    do_not_specialize=["first_seq", "channels8", "stride8", "row_stride8"],
    do_not_specialize_on_alignment=["rows_ptr", "query_start_ptr"],
)
def last_inputs_kernel(
    x_ptr,  # [T, channels], tokens strided
    state_ptr,  # [R, channels, WIDTH - 1], rows strided
    rows_ptr,  # [S]
    query_start_ptr,  # [S + 1]
    first_seq,  # sequences from here on
    channels8,
    stride8,
    row_stride8,  # of states
    WIDTH: tl.constexpr,
    BLOCK: tl.constexpr,
):
    wait_for_previous()
    channels = channels8 * 8
    channel = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = channel < channels
    seq = first_seq + tl.program_id(1)
    start = tl.load(query_start_ptr + seq)
    length = tl.load(query_start_ptr + seq + 1) - start
    past_ptr = state_ptr + tl.load(rows_ptr + seq) * (row_stride8 * 8) + channel * (WIDTH - 1)
    for i in tl.static_range(WIDTH - 1):
        token = length - (WIDTH - 1) + i
        x = tl.load(
            x_ptr + (start + token).to(tl.int64) * (stride8 * 8) + channel, mask=inside & (token >= 0), other=0.0
        )
        # A chunk shorter than the window moves what there was; a later place, which nothing was written to yet.
        past = tl.load(past_ptr + (i + length), mask=inside & (token < 0), other=0.0)
        tl.store(past_ptr + i, tl.where(token < 0, past, x), mask=inside)


@triton.jit
def _weight(weight_ptr, channel, i, inside, WIDTH: tl.constexpr):
    return tl.load(weight_ptr + channel * WIDTH + i, mask=inside, other=0.0).to(tl.float32)
