"""Sampling in plain torch."""

from __future__ import annotations

import functools
import math

import numpy as np
import torch
from torch import Tensor

from kernels.sampling.batch import FORBIDDEN, FREQUENCY, PRESENCE, REPETITION, Sampled, SamplingBatch
from kernels.sampling.bias import add_biases

# So many of the largest logits are looked at first for what top-p asks for; mostly they hold it.
_HEAD = 512
# Logits so far below the largest, in units of the temperature, weigh nothing: a float64 cannot add them to it.
_LOWEST = -80.0
# Up to so many tokens that a row may sample are taken out of it one by one.
_FEW = 1024


def sample(logits: Tensor, batch: SamplingBatch) -> Sampled:
    """Sample one token for each row of `logits` [S, V], as the package says.

    Args:
        logits: float32, contiguous; changed in place where the batch says so. Where every row is greedy and only the
            tokens are asked for, they may be bfloat16 or float16.
        batch: from `batch.pack`, with one row for each of logits.
    """
    logprobs = torch.log_softmax(logits, dim=-1) if batch.logprobs is not None else None
    best, token_ids = _best(logits)
    finite = torch.isfinite(best)
    if batch.edits is not None:
        _edit(logits, batch)
    if batch.biases is not None:
        add_biases(logits, batch.biases)
    if batch.edits is not None or batch.biases is not None:
        best, token_ids = _best(logits)
    restricted = {} if batch.allowed is None else _restrict(logits, batch.allowed, best, token_ids)
    samplable = torch.isfinite(best)
    if batch.samples:
        assert batch.parameters is not None
        numbers = (finite & samplable).tolist()
        for row, (temperature, uniform, top_k, top_p, min_p, *_) in enumerate(batch.parameters.T.tolist()):
            if temperature > 0 and numbers[row]:
                own, ids = restricted.get(row) or (logits[row], None)
                token_ids[row] = _sample(own, ids, best[row], temperature, uniform, int(top_k), top_p, min_p)
    if logprobs is None:
        return Sampled(token_ids, finite, samplable)
    chosen = logprobs.gather(1, token_ids[:, None])[:, 0]
    top, top_ids = logprobs.topk(min(batch.logprobs or 0, logits.shape[-1]), dim=-1)
    return Sampled(token_ids, finite, samplable, chosen, top, top_ids)


def _best(logits: Tensor) -> tuple[Tensor, Tensor]:
    """The largest logit of each row and where it first stands; NaN where there is one.

    By blocks: on a CPU a maximum is found some ten times as fast as its place.
    """
    rows, vocab = logits.shape
    block = min(vocab & -vocab, 256)  # the largest power of two that divides the vocabulary
    if block < 16 or logits.numel() < 1 << 16:
        return logits.max(dim=-1)
    blocks = logits.view(rows, -1, block)
    best, number = blocks.amax(dim=-1).max(dim=-1)
    inside = blocks.take_along_dim(number[:, None, None], dim=1)[:, 0].argmax(dim=-1)
    return best, number * block + inside


def _edit(logits: Tensor, batch: SamplingBatch) -> None:
    assert batch.edits is not None
    assert batch.parameters is not None
    rows, tokens, times = batch.edits.long()
    presence, frequency, repetition = batch.parameters[[PRESENCE, FREQUENCY, REPETITION]][:, rows]
    own = logits[rows, tokens]
    values = torch.where(own > 0, own / repetition, own * repetition)
    values = torch.where(times > 0, values - (presence + frequency * times), values)
    most = torch.finfo(values.dtype).max
    forbidden = (times == FORBIDDEN) | (own == -torch.inf)
    logits[rows, tokens] = values.clamp_(-most, most).masked_fill_(forbidden, -torch.inf)


def _restrict(logits: Tensor, allowed: Tensor, best: Tensor, token_ids: Tensor) -> dict[int, tuple[Tensor, Tensor]]:
    """Put what each row may sample at best in `best` and `token_ids`. Returns, by row, the logits of the few tokens
    that it may sample, and their ids: what follows takes less time for them than for a whole row. Where it may sample
    more, the others become -inf in place."""
    masks = allowed[:, 1:].cpu().numpy()
    counts = np.bitwise_count(masks.view(np.uint32)).sum(axis=1)
    few, many = np.flatnonzero(counts <= _FEW), np.flatnonzero(counts > _FEW)
    if len(many):
        _forbid(logits, allowed[many], best, token_ids)
    if not len(few):
        return {}
    rows = allowed[few, 0].long()
    bits = np.unpackbits(np.ascontiguousarray(masks[few]).view(np.uint8), bitorder="little").view(np.bool_)
    of_rows, places = np.divmod(np.flatnonzero(bits), 32 * masks.shape[1])
    inside = places < logits.shape[1]
    of_rows, sizes = of_rows[inside], np.bincount(of_rows[inside], minlength=len(few))
    ids = torch.from_numpy(places[inside]).to(logits.device)
    own = logits[rows[of_rows], ids]
    for_none = len(own)  # the place of a row without any
    host, starts = own.cpu().numpy(), np.cumsum(sizes) - sizes
    first = [
        start + int(host[start : start + size].argmax()) if size else for_none
        for start, size in zip(starts.tolist(), sizes.tolist(), strict=True)
    ]
    best[rows] = torch.cat([own, own.new_tensor([-torch.inf])])[first]
    token_ids[rows] = torch.cat([ids, ids.new_tensor([0])])[first]
    each = zip(own.split(sizes.tolist()), ids.split(sizes.tolist()), strict=True)
    return dict(zip(rows.tolist(), each, strict=True))


def _forbid(logits: Tensor, allowed: Tensor, best: Tensor, token_ids: Tensor) -> None:
    """By a table of what each byte of a mask leaves of eight logits: on a CPU a tenth of the time of shifted bits and a
    masked fill."""
    rows, mask = allowed[:, 0].long(), allowed[:, 1:].contiguous().view(torch.uint8).int()
    limits = _limits(mask.device).index_select(0, mask.view(-1)).view(len(rows), -1)[:, : logits.shape[1]]
    if len(rows) == len(logits):  # each row once, and in order where they are all
        torch.minimum(logits, limits, out=logits)
    else:
        logits[rows] = torch.minimum(logits[rows], limits)
    best[rows], token_ids[rows] = (found[rows] for found in _best(logits))


@functools.cache
def _limits(device: torch.device) -> Tensor:
    """[256, 8]: infinity where a byte has a bit, its lowest first, and -infinity where it has none."""
    bits = torch.arange(256, device=device)[:, None] >> torch.arange(8, device=device) & 1
    return torch.where(bits.bool(), torch.inf, -torch.inf)


def _sample(
    logits: Tensor,
    ids: Tensor | None,
    best: Tensor,
    temperature: float,
    uniform: float,
    top_k: int,
    top_p: float,
    min_p: float,
) -> Tensor:
    """The token id that one row samples: of `ids`, in the order of the vocabulary, or of all of it. `logits` are those
    tokens' own, and `best` is the largest, and finite."""
    if 0 < top_k < logits.shape[0]:
        kept = _where(logits >= logits.topk(top_k).values[-1])
        ids, logits = _of(ids, kept), logits[kept]
    weights = _weights(logits, best, temperature)
    if top_p < 1:
        kept = _where(logits >= _least_in_nucleus(logits, weights, best, temperature, top_p))
        ids, weights = _of(ids, kept), weights[kept]
    if min_p > 0:
        kept = _where(weights >= min_p)
        ids, weights = _of(ids, kept), weights[kept]
    index = _invert(weights, uniform)
    return index if ids is None else ids[index]


def _of(ids: Tensor | None, kept: Tensor) -> Tensor:
    return kept if ids is None else ids[kept]


def _where(kept: Tensor) -> Tensor:
    return kept.nonzero()[:, 0]


def _weights(logits: Tensor, best: Tensor, temperature: float) -> Tensor:
    """1 for the largest logit, and 0 for what weighs next to nothing. It is moved to 0 first: a tiny temperature makes
    the others -inf, never NaN. These are raised, as on a CPU exp takes four times as long for them."""
    moved = (logits - best).div_(max(temperature, torch.finfo(torch.float32).tiny)).clamp_(min=_LOWEST)
    return moved.exp_().sub_(2 * math.exp(_LOWEST)).clamp_(min=0)


def _least_in_nucleus(logits: Tensor, weights: Tensor, best: Tensor, temperature: float, top_p: float) -> Tensor:
    """The smallest logit for which all strictly larger ones together weigh less than `top_p` of the total."""
    target = top_p * weights.sum(dtype=torch.float64)
    count, vocab = min(_HEAD, logits.shape[0]), logits.shape[0]
    while True:
        largest = logits.topk(count).values
        held = _weights(largest, best, temperature).cumsum(0, dtype=torch.float64)
        if held[-1] >= target or count == vocab:
            return largest[torch.searchsorted(held, target).clamp_(max=count - 1)]
        count = min(16 * count, vocab)


def _invert(weights: Tensor, uniform: float) -> Tensor:
    """The first index at which the running sum exceeds `uniform` of the total; never one of weight zero."""
    held = weights.cumsum(0, dtype=torch.float64)
    return torch.searchsorted(held, uniform * held[-1], right=True)
