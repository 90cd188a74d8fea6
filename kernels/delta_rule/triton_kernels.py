"""The kernels of the gated delta rule. `triton.py` launches them; `__init__.py` has the formulas and their names."""

from __future__ import annotations

import triton
import triton.language as tl

from kernels.delta_rule import NORM_EPS
from kernels.dependent_launch import wait_for_previous
from kernels.sequence_tiles import first_tile, sequence_of_tile

_EPS = tl.constexpr(NORM_EPS)


@triton.jit(
    do_not_specialize=[
        "heads", "group", "value_dim8", "query_stride8", "key_stride8", "value_stride8", "gate_stride", "row_stride8",
    ],
    do_not_specialize_on_alignment=["a_ptr", "b_ptr", "a_log_ptr", "dt_bias_ptr", "rows_ptr"],
)  # fmt: skip
def decode_kernel(
    query_ptr,  # [S, heads / group, KEY_DIM], tokens strided: one token a sequence
    key_ptr,  # the same
    value_ptr,  # [S, heads, value_dim], tokens strided
    a_ptr,  # [S, heads], tokens strided
    b_ptr,  # the same
    a_log_ptr,  # [heads]
    dt_bias_ptr,  # [heads]
    state_ptr,  # [R, heads, KEY_DIM, value_dim], rows strided
    rows_ptr,  # [S]
    out_ptr,  # [S, heads, value_dim]
    heads,
    group,
    value_dim8,
    query_stride8,
    key_stride8,
    value_stride8,
    gate_stride,  # of a and b
    row_stride8,  # of states
    KEY_DIM: tl.constexpr,
    VALUES: tl.constexpr,
):
    wait_for_previous()
    head = tl.program_id(1)
    seq = tl.program_id(2).to(tl.int64)
    value_dim = value_dim8 * 8
    dim = tl.arange(0, KEY_DIM)
    column = tl.program_id(0) * VALUES + tl.arange(0, VALUES)
    inside = column < value_dim
    row = tl.load(rows_ptr + seq)
    place = row * (row_stride8 * 8) + (head * KEY_DIM + dim)[:, None] * value_dim + column[None, :]
    state = tl.load(state_ptr + place, mask=inside[None, :], other=0.0)
    start = head // group * KEY_DIM
    query = tl.load(query_ptr + seq * (query_stride8 * 8) + start + dim).to(tl.float32)
    key = tl.load(key_ptr + seq * (key_stride8 * 8) + start + dim).to(tl.float32)
    value_place = seq * (value_stride8 * 8) + head * value_dim + column
    value = tl.load(value_ptr + value_place, mask=inside, other=0.0).to(tl.float32)
    a = tl.load(a_ptr + seq * gate_stride + head)
    b = tl.load(b_ptr + seq * gate_stride + head)
    state = _advanced(state, key, value, a, b, tl.load(a_log_ptr + head), tl.load(dt_bias_ptr + head))
    tl.store(state_ptr + place, state, mask=inside[None, :])
    out = _read(query, state, KEY_DIM)
    tl.store(out_ptr + (seq * heads + head) * value_dim + column, out.to(out_ptr.dtype.element_ty), mask=inside)


@triton.jit(
    do_not_specialize=[
        "heads", "group", "value_dim8", "query_stride8", "key_stride8", "value_stride8", "gate_stride", "row_stride8",
        "kept_stride8", "places",
    ],
    do_not_specialize_on_alignment=[
        "a_ptr", "b_ptr", "a_log_ptr", "dt_bias_ptr", "rows_ptr", "seq_lens_ptr", "lens_ptr", "accepted_ptr",
    ],
)  # fmt: skip
def chain_kernel(
    query_ptr,  # as of decode_kernel, up to out_ptr
    key_ptr,
    value_ptr,
    a_ptr,
    b_ptr,
    a_log_ptr,
    dt_bias_ptr,
    state_ptr,
    rows_ptr,
    out_ptr,
    kept_keys_ptr,  # [R, places, heads / group, KEY_DIM], rows strided: each draft's, at its position modulo places
    kept_values_ptr,  # [R, places, heads, value_dim]
    kept_gates_ptr,  # [R, places, 2, heads]: a and b
    seq_lens_ptr,  # [S]
    lens_ptr,  # [S], of chains
    accepted_ptr,  # [S]
    heads,
    group,
    value_dim8,
    query_stride8,
    key_stride8,
    value_stride8,
    gate_stride,  # of a and b
    row_stride8,  # of states
    kept_stride8,  # from row to row of all that is kept
    places,
    KEY_DIM: tl.constexpr,
    VALUES: tl.constexpr,
):
    """A chain, some of whose values a program takes: what was accepted, the known token, and drafts."""
    wait_for_previous()
    seq = tl.program_id(2).to(tl.int64)
    count = tl.load(lens_ptr + seq)
    if count == 0:
        return
    head = tl.program_id(1)
    value_dim = value_dim8 * 8
    dim = tl.arange(0, KEY_DIM)
    column = tl.program_id(0) * VALUES + tl.arange(0, VALUES)
    inside = column < value_dim
    row = tl.load(rows_ptr + seq)
    position = tl.load(seq_lens_ptr + seq) - 1
    accepted = tl.load(accepted_ptr + seq)
    a_log, dt_bias = tl.load(a_log_ptr + head), tl.load(dt_bias_ptr + head)
    place = row * (row_stride8 * 8) + (head * KEY_DIM + dim)[:, None] * value_dim + column[None, :]
    state = tl.load(state_ptr + place, mask=inside[None, :], other=0.0)

    kept_keys_ptr += row * (kept_stride8 * 8) + head // group * KEY_DIM + dim
    kept_values_ptr += row * (kept_stride8 * 8) + head * value_dim + column
    kept_gates_ptr += row * (kept_stride8 * 8) + head
    for number in range(accepted):
        at = (position - accepted + number) % places
        key = tl.load(kept_keys_ptr + at * (heads // group * KEY_DIM)).to(tl.float32)
        value = tl.load(kept_values_ptr + at * (heads * value_dim), mask=inside, other=0.0).to(tl.float32)
        a = tl.load(kept_gates_ptr + at * (2 * heads))
        b = tl.load(kept_gates_ptr + at * (2 * heads) + heads)
        state = _advanced(state, key, value, a, b, a_log, dt_bias)

    query_ptr += seq * (query_stride8 * 8) + head // group * KEY_DIM + dim
    key_ptr += seq * (key_stride8 * 8) + head // group * KEY_DIM + dim
    value_ptr += seq * (value_stride8 * 8) + head * value_dim + column
    gate_place = seq * gate_stride + head
    out_ptr += (seq * heads + head) * value_dim + column
    for number in range(count):
        query = tl.load(query_ptr).to(tl.float32)
        key = tl.load(key_ptr)
        value = tl.load(value_ptr, mask=inside, other=0.0)
        a = tl.load(a_ptr + gate_place)
        b = tl.load(b_ptr + gate_place)
        state = _advanced(state, key.to(tl.float32), value.to(tl.float32), a, b, a_log, dt_bias)
        if number == 0:
            tl.store(state_ptr + place, state, mask=inside[None, :])
        else:
            # Places of drafts that other programs may still replay are never among these.
            at = (position + number) % places
            is_first = tl.program_id(0) == 0
            tl.store(kept_keys_ptr + at * (heads // group * KEY_DIM), key, mask=is_first & (head % group == 0))
            tl.store(kept_values_ptr + at * (heads * value_dim), value, mask=inside)
            tl.store(kept_gates_ptr + at * (2 * heads), a, mask=is_first)
            tl.store(kept_gates_ptr + at * (2 * heads) + heads, b, mask=is_first)
        tl.store(out_ptr, _read(query, state, KEY_DIM).to(out_ptr.dtype.element_ty), mask=inside)
        query_ptr += query_stride8 * 8
        key_ptr += key_stride8 * 8
        value_ptr += value_stride8 * 8
        gate_place += gate_stride
        out_ptr += heads * value_dim


@triton.jit(
    do_not_specialize=[
        "first_seq", "num_seqs", "heads", "group", "value_dim8", "query_stride8", "key_stride8", "value_stride8",
        "gate_stride",
    ],
    do_not_specialize_on_alignment=["a_ptr", "b_ptr", "a_log_ptr", "dt_bias_ptr", "query_start_ptr"],
)  # fmt: skip
def prepare_kernel(
    query_ptr,  # [T, heads / group, KEY_DIM], tokens strided
    key_ptr,  # the same
    value_ptr,  # [T, heads, value_dim], tokens strided
    a_ptr,  # [T, heads], tokens strided
    b_ptr,  # the same
    a_log_ptr,  # [heads]
    dt_bias_ptr,  # [heads]
    query_start_ptr,  # [S + 1]
    # Of the prefills' tokens alone:
    readers_ptr,  # [tokens, heads, 2, KEY_DIM]: W, and diag(exp(G)) Q - P W
    corrections_ptr,  # [tokens, heads, value_dim]: U0
    out_ptr,  # [T, heads, value_dim]: P U0
    scales_ptr,  # [tokens, heads]: of each key, as the state takes it
    shrinks_ptr,  # [tiles, heads]: exp(G_C)
    first_seq,  # sequences from here on
    num_seqs,
    heads,
    group,
    value_dim8,
    query_stride8,
    key_stride8,
    value_stride8,
    gate_stride,  # of a and b
    KEY_DIM: tl.constexpr,
    CHUNK: tl.constexpr,
    BLOCK: tl.constexpr,  # of KEY_DIM and of value_dim, at a time
):
    """All of a chunk of one head that does not depend on the state. Lengths of keys and queries are divided out in
    float32, so that the matrix units multiply them as they are."""
    wait_for_previous()
    DTYPE: tl.constexpr = query_ptr.dtype.element_ty
    head, tile = tl.program_id(0), tl.program_id(1)
    _, start, length, first = sequence_of_tile(tile, query_start_ptr, first_seq, num_seqs, CHUNK)
    if first >= length:
        return
    value_dim = value_dim8 * 8
    index = tl.arange(0, CHUNK)
    block = tl.arange(0, BLOCK)[None, :]
    inside = first + index < length
    # Where the chunk begins: in the batch, and among the prefills' tokens.
    token = (start + first).to(tl.int64)
    own = token - tl.load(query_start_ptr + first_seq)
    gate_place = token * gate_stride + head + index * gate_stride
    a = tl.load(a_ptr + gate_place, mask=inside, other=0.0)
    b = tl.load(b_ptr + gate_place, mask=inside, other=0.0)
    decay, beta = _gates(a, b, tl.load(a_log_ptr + head), tl.load(dt_bias_ptr + head))
    decay = tl.where(inside, decay, 0.0)
    total = tl.cumsum(decay, axis=0)
    last = tl.sum(decay, axis=0)

    query_ptr += token * (query_stride8 * 8) + head // group * KEY_DIM
    key_ptr += token * (key_stride8 * 8) + head // group * KEY_DIM
    query_place = (index * (query_stride8 * 8))[:, None] + block
    key_place = (index * (key_stride8 * 8))[:, None] + block
    system = tl.zeros((CHUNK, CHUNK), dtype=tl.float32)
    within = tl.zeros((CHUNK, CHUNK), dtype=tl.float32)
    query_scale = tl.zeros((CHUNK,), dtype=tl.float32)
    key_scale = tl.zeros((CHUNK,), dtype=tl.float32)
    for begin in range(0, KEY_DIM, BLOCK):
        query = tl.load(query_ptr + begin + query_place, mask=inside[:, None], other=0.0)
        key = tl.load(key_ptr + begin + key_place, mask=inside[:, None], other=0.0)
        system = tl.dot(key, tl.trans(key), system)
        within = tl.dot(query, tl.trans(key), within)
        query_scale += _squares(query)
        key_scale += _squares(key)
    query_scale = tl.rsqrt(query_scale + _EPS) * (1.0 / KEY_DIM**0.5)
    key_scale = tl.rsqrt(key_scale + _EPS)
    tl.store(scales_ptr + own * heads + head + index * heads, key_scale * tl.exp(last - total), mask=inside)
    tl.store(shrinks_ptr + tile * heads + head, tl.exp(last))

    seen = index[:, None] >= index[None, :]
    between = tl.exp(tl.where(seen, total[:, None] - total[None, :], float("-inf"))) * key_scale[None, :]
    within = (within * between * query_scale[:, None]).to(DTYPE)
    system *= between * (beta * key_scale)[:, None]
    solved = _inverse(tl.where(index[:, None] > index[None, :], system, 0.0), CHUNK) * beta[None, :]
    grown = tl.exp(total)
    weighing = (solved * (grown * key_scale)[None, :]).to(DTYPE)
    solved = solved.to(DTYPE)

    readers_ptr += (own * heads + head) * (2 * KEY_DIM)
    reader_place = (index * (heads * 2 * KEY_DIM))[:, None] + block
    for begin in range(0, KEY_DIM, BLOCK):
        key = tl.load(key_ptr + begin + key_place, mask=inside[:, None], other=0.0)
        query = tl.load(query_ptr + begin + query_place, mask=inside[:, None], other=0.0)
        weights = tl.dot(weighing, key).to(DTYPE)
        tl.store(readers_ptr + begin + reader_place, weights, mask=inside[:, None])
        queries = query.to(tl.float32) * (query_scale * grown)[:, None] - tl.dot(within, weights)
        tl.store(readers_ptr + begin + KEY_DIM + reader_place, queries.to(DTYPE), mask=inside[:, None])

    value_ptr += token * (value_stride8 * 8) + head * value_dim
    corrections_ptr += (own * heads + head) * value_dim
    out_ptr += (token * heads + head) * value_dim
    for begin in range(0, value_dim, BLOCK):
        column = begin + block
        held = inside[:, None] & (column < value_dim)
        value = tl.load(value_ptr + (index * (value_stride8 * 8))[:, None] + column, mask=held, other=0.0)
        corrections = tl.dot(solved, value).to(DTYPE)
        value_place = (index * (heads * value_dim))[:, None] + column
        tl.store(corrections_ptr + value_place, corrections, mask=held)
        tl.store(out_ptr + value_place, tl.dot(within, corrections).to(DTYPE), mask=held)


@triton.jit(
    do_not_specialize=["first_seq", "heads", "group", "value_dim8", "key_stride8", "row_stride8"],
    do_not_specialize_on_alignment=["rows_ptr", "query_start_ptr"],
)
def scan_kernel(
    key_ptr,  # [T, heads / group, KEY_DIM], tokens strided
    readers_ptr,  # of prepare_kernel, as are the next
    corrections_ptr,
    out_ptr,  # [T, heads, value_dim], to which what the state gives is added
    scales_ptr,
    shrinks_ptr,
    state_ptr,  # [R, heads, KEY_DIM, value_dim], rows strided
    rows_ptr,  # [S]
    query_start_ptr,  # [S + 1]
    first_seq,  # sequences from here on
    heads,
    group,
    value_dim8,
    key_stride8,
    row_stride8,  # of states
    KEY_DIM: tl.constexpr,
    CHUNK: tl.constexpr,
    VALUES: tl.constexpr,
):
    """The state from chunk to chunk, of one head and some of its values."""
    wait_for_previous()
    head, seq = tl.program_id(1), first_seq + tl.program_id(2)
    value_dim = value_dim8 * 8
    dim = tl.arange(0, KEY_DIM)
    index = tl.arange(0, CHUNK)
    column = tl.program_id(0) * VALUES + tl.arange(0, VALUES)[None, :]
    known = column < value_dim
    start = tl.load(query_start_ptr + seq)
    length = tl.load(query_start_ptr + seq + 1) - start
    before = start - tl.load(query_start_ptr + first_seq)
    row = tl.load(rows_ptr + seq)
    state_ptr += row * (row_stride8 * 8) + head * KEY_DIM * value_dim
    state = tl.load(state_ptr + (dim * value_dim)[:, None] + column, mask=known, other=0.0)

    # Where the sequence begins; each chunk moves them on.
    token, own = start.to(tl.int64), before.to(tl.int64) * heads + head
    key_ptr += token * (key_stride8 * 8) + head // group * KEY_DIM
    readers_ptr += own * (2 * KEY_DIM)
    corrections_ptr += own * value_dim
    out_ptr += (token * heads + head) * value_dim
    scales_ptr += own
    shrinks_ptr += first_tile(before, tl.program_id(2), CHUNK) * heads + head
    key_place = (index * (key_stride8 * 8))[:, None] + dim[None, :]
    both = tl.arange(0, 2 * CHUNK)
    reader_place = (both % CHUNK * (heads * 2 * KEY_DIM) + both // CHUNK * KEY_DIM)[:, None] + dim[None, :]
    value_place = (index * (heads * value_dim))[:, None] + column
    # A chunk ahead, since these loads feed no product, for which the compiler would see to it.
    out = tl.load(out_ptr + value_place, mask=(index < length)[:, None] & known, other=0.0)
    shrink = tl.load(shrinks_ptr)
    for first in range(0, length, CHUNK):
        inside = first + index < length
        readers = tl.load(readers_ptr + reader_place, mask=(first + both % CHUNK < length)[:, None], other=0.0)
        corrections = tl.load(corrections_ptr + value_place, mask=inside[:, None] & known, other=0.0)
        scales = tl.load(scales_ptr + index * heads, mask=inside, other=0.0)
        key = tl.load(key_ptr + key_place, mask=inside[:, None], other=0.0)
        ahead = first + CHUNK + index < length
        next_out_ptr = out_ptr + CHUNK * heads * value_dim
        next_out = tl.load(next_out_ptr + value_place, mask=ahead[:, None] & known, other=0.0)
        shrinks_ptr += heads
        next_shrink = tl.load(shrinks_ptr, mask=first + CHUNK < length, other=0.0)

        read = tl.dot(readers, state.to(key.dtype))
        predicted, read = tl.split(tl.permute(tl.reshape(read, (2, CHUNK, VALUES)), (1, 2, 0)))
        changes = (corrections.to(tl.float32) - predicted) * scales[:, None]
        result = out.to(tl.float32) + read
        state = tl.dot(tl.trans(key), changes.to(key.dtype), state * shrink)
        tl.store(out_ptr + value_place, result.to(key.dtype), mask=inside[:, None] & known)

        out, out_ptr, shrink = next_out, next_out_ptr, next_shrink
        readers_ptr += CHUNK * heads * 2 * KEY_DIM
        corrections_ptr += CHUNK * heads * value_dim
        scales_ptr += CHUNK * heads
        key_ptr += CHUNK * (key_stride8 * 8)
    tl.store(state_ptr + (dim * value_dim)[:, None] + column, state, mask=known)


@triton.jit
def _advanced(state, key, value, a, b, a_log, dt_bias):
    """The state behind one token more: `key` [KEY_DIM] and `value` [VALUES] in float32, as they were given."""
    decay, beta = _gates(a, b, a_log, dt_bias)
    key *= tl.rsqrt(tl.sum(key * key) + _EPS)
    state *= tl.exp(decay)
    correction = beta * (value - tl.sum(key[:, None] * state, axis=0))
    return state + key[:, None] * correction[None, :]


@triton.jit
def _read(query, state, KEY_DIM: tl.constexpr):
    query *= tl.rsqrt(tl.sum(query * query) + _EPS) * (1.0 / KEY_DIM**0.5)
    return tl.sum(query[:, None] * state, axis=0)


@triton.jit
def _gates(a, b, a_log, dt_bias):
    """The logarithm of the decay, and beta."""
    x = a.to(tl.float32) + dt_bias
    softplus = tl.maximum(x, 0.0) + tl.log(1.0 + tl.exp(-tl.abs(x)))
    return -tl.exp(a_log) * softplus, tl.sigmoid(b.to(tl.float32))


@triton.jit
def _squares(rows):
    wide = rows.to(tl.float32)
    return tl.sum(wide * wide, axis=1)


@triton.jit
def _inverse(system, CHUNK: tl.constexpr):
    """(I + A)^-1 of a strictly lower triangular A [CHUNK, CHUNK], in float32, by forward substitution, whose terms stay
    as small as the result, unlike the powers of A, whose sum it is too."""
    row = tl.arange(0, CHUNK)
    inverse = tl.where(row[:, None] == row[None, :], 1.0, 0.0)
    for i in range(1, CHUNK):
        chosen = row[:, None] == i
        factors = tl.sum(tl.where(chosen, system, 0.0), axis=0)
        change = tl.sum(factors[:, None] * inverse, axis=0)
        inverse -= tl.where(chosen, change[None, :], 0.0)
    return inverse
