"""Sampling in Triton, without sorting: rows are divided into chunks, and whichever program of a row finishes last joins
what they found.

One kernel finds the largest logit and samples where no more is asked for. Rows with top-k, top-p or min-p take two
more: one measures how many tokens, of which weight, lie within fixed distances of the largest logit, and so which
tokens come into question at all; the other lists these and searches among them for the exact threshold. Every sum is
taken over chunks of a fixed size in a fixed order, so that equal rows of logits sample the same in whatever batch they
are.
"""

from __future__ import annotations

import functools

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels.dependent_launch import wait_for_previous
from kernels.launch import cdiv, launch
from kernels.sampling import batch as words
from kernels.sampling import variants
from kernels.sampling.batch import Sampled, SamplingBatch
from kernels.sampling.bias import add_biases

_edit = functools.cache(variants.edit)
_restrict = functools.cache(variants.restrict)
_best = functools.cache(variants.best)
_level = functools.cache(variants.level)
_sample = functools.cache(variants.sample)

_TEMPERATURE = tl.constexpr(words.TEMPERATURE)
_UNIFORM = tl.constexpr(words.UNIFORM)
_TOP_K = tl.constexpr(words.TOP_K)
_TOP_P = tl.constexpr(words.TOP_P)
_MIN_P = tl.constexpr(words.MIN_P)
_PRESENCE = tl.constexpr(words.PRESENCE)
_FREQUENCY = tl.constexpr(words.FREQUENCY)
_REPETITION = tl.constexpr(words.REPETITION)
_FORBIDDEN = tl.constexpr(words.FORBIDDEN)

_INFINITY = tl.constexpr(float("inf"))
_LARGEST = tl.constexpr(torch.finfo(torch.float32).max)
_LOWEST_KEY = tl.constexpr(-(2**31))


def sample(logits: Tensor, batch: SamplingBatch) -> Sampled:
    """As `reference.sample`, for up to `variants.MAX_VOCAB` tokens and 65535 rows."""
    rows, vocab = logits.shape
    chunks = cdiv(vocab, variants.CHUNK)
    device = logits.device
    logprobs = torch.log_softmax(logits, dim=-1) if batch.logprobs is not None else None
    best = torch.empty(rows, dtype=torch.float32, device=device)
    parameters = best if batch.parameters is None else batch.parameters  # anything
    finite = None
    if batch.changes_logits:
        finite = logits.amax(dim=-1).isfinite()  # before they are changed
    if batch.edits is not None:
        edits = batch.edits.shape[1]
        launch(
            edit_kernel, _edit(), (cdiv(edits, variants.EDITS),),
            logits, parameters, batch.edits, edits, rows, vocab,
        )  # fmt: skip
    if batch.biases is not None:
        add_biases(logits, batch.biases)
    if batch.allowed is not None:
        restricted, size_of_row = batch.allowed.shape
        launch(restrict_kernel, _restrict(), (chunks, restricted), logits, batch.allowed, size_of_row, vocab)
    token_ids = torch.empty(rows, dtype=torch.int64, device=device)
    samplable = torch.empty(rows, dtype=torch.uint8, device=device)
    found = torch.empty((3, rows, chunks), dtype=torch.float32, device=device)
    done = torch.zeros((3, rows), dtype=torch.int32, device=device)
    grid = (chunks, rows)
    dtype = str(logits.dtype).removeprefix("torch.")
    launch(
        best_kernel, _best(batch.samples, dtype), grid,
        logits, parameters, found, done, token_ids, samplable, best, vocab,
    )  # fmt: skip
    if batch.truncates:
        mass = torch.empty((rows, chunks, variants.LEVELS), dtype=torch.float32, device=device)
        count = torch.empty((rows, chunks, variants.LEVELS), dtype=torch.int32, device=device)
        reach = torch.empty(rows, dtype=torch.float32, device=device)
        total = torch.empty(rows, dtype=torch.float32, device=device)
        first = torch.empty((rows, chunks), dtype=torch.int32, device=device)
        size = torch.empty(rows, dtype=torch.int32, device=device)
        values = torch.empty((rows, variants.ROOM), dtype=torch.float32, device=device)
        ids = torch.empty((rows, variants.ROOM), dtype=torch.int32, device=device)
        launch(
            level_kernel, _level(), grid, logits, parameters, best, mass, count, done, reach, total, first, size, vocab
        )  # fmt: skip
        launch(
            sample_kernel, _sample(), grid,
            logits, parameters, best, reach, total, first, size, values, ids, done, token_ids, vocab,
        )  # fmt: skip
    could = samplable.view(torch.bool)
    finite = could if finite is None else finite
    if logprobs is None:
        return Sampled(token_ids, finite, could)
    chosen = logprobs.gather(1, token_ids[:, None])[:, 0]
    top, top_ids = logprobs.topk(min(batch.logprobs or 0, vocab), dim=-1)
    return Sampled(token_ids, finite, could, chosen, top, top_ids)


@triton.jit(do_not_specialize=["count", "rows", "vocab"])
def edit_kernel(
    logits_ptr,  # [rows, vocab]
    parameters_ptr,  # [8, rows]
    edits_ptr,  # [3, count]
    count,
    rows,
    vocab,
    BLOCK: tl.constexpr,
):
    wait_for_previous()
    edit = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = edit < count
    row = tl.load(edits_ptr + edit, mask=inside, other=0)
    token = tl.load(edits_ptr + count + edit, mask=inside, other=0)
    times = tl.load(edits_ptr + 2 * count + edit, mask=inside, other=0)
    presence = tl.load(parameters_ptr + _PRESENCE * rows + row, mask=inside, other=0.0)
    frequency = tl.load(parameters_ptr + _FREQUENCY * rows + row, mask=inside, other=0.0)
    repetition = tl.load(parameters_ptr + _REPETITION * rows + row, mask=inside, other=1.0)
    logit_ptr = logits_ptr + row.to(tl.int64) * vocab + token
    own = tl.load(logit_ptr, mask=inside, other=0.0)
    value = tl.where(own > 0, own / repetition, own * repetition)
    value = tl.where(times > 0, value - (presence + frequency * times.to(tl.float32)), value)
    value = tl.minimum(tl.maximum(value, -_LARGEST), _LARGEST)
    tl.store(logit_ptr, tl.where((times == _FORBIDDEN) | (own == -_INFINITY), -_INFINITY, value), mask=inside)


@triton.jit(do_not_specialize=["size", "vocab"])
def restrict_kernel(
    logits_ptr,  # [rows, vocab]
    allowed_ptr,  # [count, size]: a row, then a bit for each token
    size,
    vocab,
    CHUNK: tl.constexpr,
):
    wait_for_previous()
    chunk = tl.program_id(0)
    allowed_ptr += tl.program_id(1).to(tl.int64) * size
    logits_ptr += tl.load(allowed_ptr).to(tl.int64) * vocab
    position = chunk * CHUNK + tl.arange(0, CHUNK)
    inside = position < vocab
    bits = tl.load(allowed_ptr + 1 + position // 32, mask=inside, other=0)
    forbidden = ((bits >> (position % 32)) & 1) == 0
    tl.store(logits_ptr + position, tl.full((CHUNK,), -_INFINITY, tl.float32), mask=inside & forbidden)


@triton.jit
def _inverse_temperature(parameters_ptr, row, rows):
    # So small a temperature leaves the largest logit alone; the reciprocal of a smaller one would not be finite.
    return 1.0 / tl.maximum(tl.load(parameters_ptr + _TEMPERATURE * rows + row), 1e-20)


@triton.jit
def _distance(x, best, inverse_temperature):
    """How far below the largest logit, in units of the temperature; infinite for what is no number."""
    distance = (best - x) * inverse_temperature
    return tl.where(distance >= 0, distance, _INFINITY)


@triton.jit
def _pick(weight, target, SIZE: tl.constexpr):
    """The first index at which the running sum exceeds `target`; the last that weighs something where none does."""
    index = tl.arange(0, SIZE)
    exceeds = (tl.cumsum(weight, 0) > target) & (weight > 0)
    return tl.minimum(tl.min(tl.where(exceeds, index, SIZE)), tl.max(tl.where(weight > 0, index, 0)))


@triton.jit
def _arrive(done_ptr, chunks):
    """True for the program of a row that comes last: it sees what all the others have written."""
    tl.debug_barrier()  # every thread has written its part
    return tl.atomic_add(done_ptr, 1, sem="acq_rel") == chunks - 1


@triton.jit(do_not_specialize=["vocab"])
def best_kernel(
    logits_ptr,  # [rows, vocab]
    parameters_ptr,  # [8, rows], or anything where SAMPLES is false
    found_ptr,  # [3, rows, chunks]: of each chunk its largest logit (NaN if it holds one), where, and its weight
    done_ptr,  # [rows], zero
    token_ids_ptr,  # [rows]
    samplable_ptr,  # [rows]
    best_ptr,  # [rows]
    vocab,
    SAMPLES: tl.constexpr,
    CHUNK: tl.constexpr,
    MAX_CHUNKS: tl.constexpr,
):
    wait_for_previous()
    chunk, row = tl.program_id(0), tl.program_id(1)
    chunks, rows = tl.num_programs(0), tl.num_programs(1)
    logits_ptr += row.to(tl.int64) * vocab
    position = chunk * CHUNK + tl.arange(0, CHUNK)
    x = tl.load(logits_ptr + position, mask=position < vocab, other=-_INFINITY).to(tl.float32)
    best = tl.max(tl.where(x == x, x, -_INFINITY))
    where = tl.min(tl.where(x == best, position, vocab - 1))
    nan = tl.max((x != x).to(tl.int32))
    entry = row * chunks + chunk
    plane = rows * chunks
    tl.store(found_ptr + entry, tl.where(nan > 0, float("nan"), best))
    tl.store(found_ptr + plane + entry, where.to(tl.float32))
    if SAMPLES:
        inverse_temperature = _inverse_temperature(parameters_ptr, row, rows)
        tl.store(found_ptr + 2 * plane + entry, tl.sum(tl.exp(-_distance(x, best, inverse_temperature))))
    if _arrive(done_ptr + row, chunks):
        each = tl.arange(0, MAX_CHUNKS)
        entries = found_ptr + row * chunks + each
        bests = tl.load(entries, mask=each < chunks, other=-_INFINITY, cache_modifier=".cg")
        wheres = tl.load(entries + plane, mask=each < chunks, other=0.0, cache_modifier=".cg").to(tl.int32)
        nan = tl.max((bests != bests).to(tl.int32))
        best = tl.max(tl.where(bests == bests, bests, -_INFINITY))
        token = tl.min(tl.where(bests == best, wheres, vocab - 1))
        finite = (nan == 0) & (tl.abs(best) < _INFINITY)
        tl.store(samplable_ptr + row, finite.to(tl.uint8))
        tl.store(best_ptr + row, tl.where(finite, best, float("nan")))
        if SAMPLES:
            warm = tl.load(parameters_ptr + _TEMPERATURE * rows + row) > 0
            if warm & finite:
                target = tl.load(parameters_ptr + _UNIFORM * rows + row)
                inverse_temperature = _inverse_temperature(parameters_ptr, row, rows)
                held = tl.load(entries + 2 * plane, mask=each < chunks, other=0.0, cache_modifier=".cg")
                held *= tl.exp(-_distance(bests, best, inverse_temperature))  # from each chunk's best to the row's
                target *= tl.sum(held)
                chosen = _pick(held, target, MAX_CHUNKS)
                position = chosen * CHUNK + tl.arange(0, CHUNK)
                x = tl.load(logits_ptr + position, mask=position < vocab, other=-_INFINITY)
                weight = tl.exp(-_distance(x, best, inverse_temperature))
                token = chosen * CHUNK + _pick(weight, target - tl.sum(tl.where(each < chosen, held, 0.0)), CHUNK)
        tl.store(token_ids_ptr + row, token.to(tl.int64))


@triton.jit
def _level_of(number, LEVELS: tl.constexpr):
    """Distances from the largest logit, closer together near it; the last is 32: nothing beyond it is ever sampled."""
    return (number + 1) * (number + 1) * (32.0 / (LEVELS * LEVELS))


@triton.jit
def _top_k(parameters_ptr, row, rows, vocab):
    top_k = tl.load(parameters_ptr + _TOP_K * rows + row)
    return tl.where(top_k < vocab, top_k, 0.0).to(tl.int32)


@triton.jit
def _truncates(parameters_ptr, best, row, rows, vocab):
    """Whether a row needs more than `best_kernel`; never one whose largest logit is not finite."""
    warm = tl.load(parameters_ptr + _TEMPERATURE * rows + row) > 0
    some = _top_k(parameters_ptr, row, rows, vocab) > 0
    most = tl.load(parameters_ptr + _TOP_P * rows + row) < 1
    least = tl.load(parameters_ptr + _MIN_P * rows + row) > 0
    return warm & (some | most | least) & (best == best)


@triton.jit(do_not_specialize=["vocab"])
def level_kernel(
    logits_ptr,  # [rows, vocab]
    parameters_ptr,  # [8, rows]
    best_ptr,  # [rows]
    mass_ptr,  # [rows, chunks, LEVELS]: what the chunk's tokens nearer than each level weigh
    count_ptr,  # [rows, chunks, LEVELS]: and how many they are
    done_ptr,  # [3, rows], of which the second is zero
    reach_ptr,  # [rows]: no token as far from the largest logit as this comes into question
    total_ptr,  # [rows]: what all tokens together weigh
    first_ptr,  # [rows, chunks]: how many in question come before the chunk
    size_ptr,  # [rows]: and how many they are in all
    vocab,
    LEVELS: tl.constexpr,
    CHUNK: tl.constexpr,
    MAX_CHUNKS: tl.constexpr,
):
    wait_for_previous()
    chunk, row = tl.program_id(0), tl.program_id(1)
    chunks, rows = tl.num_programs(0), tl.num_programs(1)
    best = tl.load(best_ptr + row)
    if _truncates(parameters_ptr, best, row, rows, vocab):
        position = chunk * CHUNK + tl.arange(0, CHUNK)
        x = tl.load(logits_ptr + row.to(tl.int64) * vocab + position, mask=position < vocab, other=-_INFINITY)
        distance = _distance(x, best, _inverse_temperature(parameters_ptr, row, rows))
        weight = tl.exp(-distance)
        entry = (row * chunks + chunk) * LEVELS
        for number in tl.static_range(LEVELS):
            nearer = distance < _level_of(number, LEVELS)
            tl.store(mass_ptr + entry + number, tl.sum(tl.where(nearer, weight, 0.0)))
            tl.store(count_ptr + entry + number, tl.sum(nearer.to(tl.int32)))
        if _arrive(done_ptr + rows + row, chunks):
            top_k = _top_k(parameters_ptr, row, rows, vocab)
            top_p = tl.load(parameters_ptr + _TOP_P * rows + row)
            min_p = tl.load(parameters_ptr + _MIN_P * rows + row)
            each, index = tl.arange(0, MAX_CHUNKS), tl.arange(0, LEVELS)
            entries = (row * chunks + each)[:, None] * LEVELS + index[None, :]
            inside = (each < chunks)[:, None]
            counts = tl.load(count_ptr + entries, mask=inside, other=0, cache_modifier=".cg")
            mass = tl.sum(tl.load(mass_ptr + entries, mask=inside, other=0.0, cache_modifier=".cg"), axis=0)
            total = tl.max(mass)
            holds_k = tl.sum(counts, axis=0) >= tl.where(top_k > 0, top_k, vocab + 1)
            # A little more than is asked for, so that rounding never drops a token.
            holds_p = mass >= tl.where(top_p < 1, top_p, _INFINITY) * total * 1.0001
            holds_all = holds_p | (tl.exp(-_level_of(index, LEVELS)) < min_p)
            if top_k > 0:
                # What top-p and min-p leave is a part of what top-k does, and the whole of that is to be weighed.
                holds_all = holds_k
            chosen = tl.min(tl.where(holds_all, index, LEVELS - 1))
            tl.store(total_ptr + row, total)
            tl.store(reach_ptr + row, _level_of(chosen, LEVELS))
            counts = tl.sum(tl.where(index[None, :] == chosen, counts, 0), axis=1)
            tl.store(first_ptr + row * chunks + each, tl.cumsum(counts, 0) - counts, mask=each < chunks)
            tl.store(size_ptr + row, tl.sum(counts))


@triton.jit
def _key(x):
    """An integer that orders as `x` does."""
    bits = tl.where(x == 0, 0.0, x).to(tl.int32, bitcast=True)  # both zeros are one
    return bits ^ ((bits >> 31) & 0x7FFFFFFF)


@triton.jit
def _middle(low, high):
    return (low & high) + ((low ^ high) >> 1)  # of two integers whose sum may not be one of 32 bits


@triton.jit
def _part(row_ptr, values_ptr, listed, start, size, best, inverse_temperature, reach, CHUNK: tl.constexpr):
    """Keys and weights of CHUNK tokens; the lowest key and weight 0 for those that are not in question."""
    position = start + tl.arange(0, CHUNK)
    if listed:
        x = tl.load(values_ptr + position, mask=position < size, other=-_INFINITY, cache_modifier=".cg")
    else:
        x = tl.load(row_ptr + position, mask=position < size, other=-_INFINITY)
    distance = _distance(x, best, inverse_temperature)
    return tl.where(distance < reach, _key(x), _LOWEST_KEY), tl.where(distance < reach, tl.exp(-distance), 0.0)


@triton.jit(do_not_specialize=["vocab"])
def sample_kernel(
    logits_ptr,  # [rows, vocab]
    parameters_ptr,  # [8, rows]
    best_ptr,  # [rows]
    reach_ptr,  # [rows]
    total_ptr,  # [rows]
    first_ptr,  # [rows, chunks]
    size_ptr,  # [rows]
    values_ptr,  # [rows, ROOM]: logits of the tokens in question, where they are not more
    ids_ptr,  # [rows, ROOM]: and their ids, in order
    done_ptr,  # [3, rows], of which the third is zero
    token_ids_ptr,  # [rows]
    vocab,
    ROOM: tl.constexpr,
    CHUNK: tl.constexpr,
):
    wait_for_previous()
    chunk, row = tl.program_id(0), tl.program_id(1)
    chunks, rows = tl.num_programs(0), tl.num_programs(1)
    best = tl.load(best_ptr + row)
    if _truncates(parameters_ptr, best, row, rows, vocab):
        inverse_temperature = _inverse_temperature(parameters_ptr, row, rows)
        reach = tl.load(reach_ptr + row)
        size = tl.load(size_ptr + row)
        logits_ptr += row.to(tl.int64) * vocab
        values_ptr += row.to(tl.int64) * ROOM
        ids_ptr += row.to(tl.int64) * ROOM
        listed = size <= ROOM
        if listed:
            position = chunk * CHUNK + tl.arange(0, CHUNK)
            x = tl.load(logits_ptr + position, mask=position < vocab, other=-_INFINITY)
            near = _distance(x, best, inverse_temperature) < reach
            place = tl.load(first_ptr + row * chunks + chunk) + tl.cumsum(near.to(tl.int32), 0) - 1
            tl.store(values_ptr + place, x, mask=near)
            tl.store(ids_ptr + place, position, mask=near)
        else:
            size = vocab
        if _arrive(done_ptr + 2 * rows + row, chunks):
            top_k = _top_k(parameters_ptr, row, rows, vocab)
            top_p = tl.load(parameters_ptr + _TOP_P * rows + row)
            min_p = tl.load(parameters_ptr + _MIN_P * rows + row)
            # The key of the k-th largest: the largest that at least k keys reach.
            least = _LOWEST_KEY + 1
            if (top_k > 0) & (top_k < size):
                high = _key(best) + 1
                middle = _middle(least, high)
                while middle > least:
                    count = 0
                    for start in range(0, size, CHUNK):
                        key, _ = _part(
                            logits_ptr, values_ptr, listed, start, size, best, inverse_temperature, reach, CHUNK
                        )
                        count += tl.sum((key >= middle).to(tl.int32))
                    least = tl.where(count >= top_k, middle, least)
                    high = tl.where(count >= top_k, high, middle)
                    middle = _middle(least, high)
            # The least key in the nucleus: the smallest beyond which there is less than top_p of what top-k left.
            if top_p < 1:
                total = tl.load(total_ptr + row)
                if top_k > 0:
                    total = 0.0
                    for start in range(0, size, CHUNK):
                        key, weight = _part(
                            logits_ptr, values_ptr, listed, start, size, best, inverse_temperature, reach, CHUNK
                        )
                        total += tl.sum(tl.where(key >= least, weight, 0.0))
                low = least - 1
                least = _key(best)
                middle = _middle(low, least)
                while middle > low:
                    beyond = 0.0
                    for start in range(0, size, CHUNK):
                        key, weight = _part(
                            logits_ptr, values_ptr, listed, start, size, best, inverse_temperature, reach, CHUNK
                        )
                        beyond += tl.sum(tl.where(key > middle, weight, 0.0))
                    low = tl.where(beyond < top_p * total, low, middle)
                    least = tl.where(beyond < top_p * total, middle, least)
                    middle = _middle(low, least)
            total = 0.0
            for start in range(0, size, CHUNK):
                key, weight = _part(
                    logits_ptr, values_ptr, listed, start, size, best, inverse_temperature, reach, CHUNK
                )
                total += tl.sum(tl.where((key >= least) & (weight >= min_p), weight, 0.0))
            # The part in which the running sum passes the target, then the token in it.
            target = total * tl.load(parameters_ptr + _UNIFORM * rows + row)
            total, before, chosen = 0.0, 0.0, 0
            for start in range(0, size, CHUNK):
                key, weight = _part(
                    logits_ptr, values_ptr, listed, start, size, best, inverse_temperature, reach, CHUNK
                )
                held = tl.sum(tl.where((key >= least) & (weight >= min_p), weight, 0.0))
                here = (total <= target) & (held > 0)
                before = tl.where(here, total, before)
                chosen = tl.where(here, start, chosen)
                total += held
            key, weight = _part(logits_ptr, values_ptr, listed, chosen, size, best, inverse_temperature, reach, CHUNK)
            weight = tl.where((key >= least) & (weight >= min_p), weight, 0.0)
            token = chosen + _pick(weight, target - before, CHUNK)
            if listed:
                token = tl.load(ids_ptr + token, cache_modifier=".cg")
            tl.store(token_ids_ptr + row, token.to(tl.int64))
