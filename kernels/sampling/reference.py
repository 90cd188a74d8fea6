"""Sampling in plain torch."""

from __future__ import annotations

import torch
from torch import Tensor

from kernels.sampling.batch import Penalties, Sampled, SamplingBatch


def sample(logits: Tensor, batch: SamplingBatch) -> Sampled:
    """Draw one token for each row of `logits` [S, V] (float32; changed in place where penalties apply).

    A row that is not greedy is drawn by inverting its cumulative distribution at its uniform number: in the order of
        the vocabulary, or, with top-k, top-p or min-p, from the most likely token down. Order of operations:
        penalties, temperature, top-k, top-p, min-p.
    """
    logprobs = torch.log_softmax(logits, dim=-1) if batch.logprobs is not None else None
    for row, forbidden in batch.forbidden:
        logits[row, forbidden] = -torch.inf
    for penalties in batch.penalties:
        _penalise(logits[penalties.row], penalties)
    best, token_ids = logits.max(dim=-1)
    finite = torch.isfinite(best)
    if batch.plain_rows:
        token_ids[batch.plain_rows] = _draw_plain(logits[batch.plain_rows], batch)
    if batch.truncated_rows:
        token_ids[batch.truncated_rows] = _draw_truncated(logits[batch.truncated_rows], batch)
    if logprobs is None:
        return Sampled(token_ids, finite)
    chosen = logprobs.gather(1, token_ids[:, None])[:, 0]
    top, top_ids = logprobs.topk(min(batch.logprobs or 0, logits.shape[-1]), dim=-1)
    return Sampled(token_ids, finite, chosen, top, top_ids)


def _penalise(row: Tensor, penalties: Penalties) -> None:
    if penalties.repetition != 1.0:
        seen = torch.unique(torch.cat((penalties.prompt, penalties.output)))
        values = row[seen]
        row[seen] = torch.where(values > 0, values / penalties.repetition, values * penalties.repetition)
    if penalties.output.numel():
        written, times = torch.unique(penalties.output, return_counts=True)
        row[written] -= penalties.presence + penalties.frequency * times


def _draw_plain(logits: Tensor, batch: SamplingBatch) -> Tensor:
    assert batch.plain_temperature is not None
    assert batch.plain_uniform is not None
    probabilities = torch.softmax(_warmed(logits, batch.plain_temperature), dim=-1)
    return _invert(probabilities, batch.plain_uniform)


def _draw_truncated(logits: Tensor, batch: SamplingBatch) -> Tensor:
    assert batch.truncated_temperature is not None
    assert batch.truncated_uniform is not None
    assert batch.top_k is not None
    assert batch.top_p is not None
    assert batch.min_p is not None
    ordered, order = logits.sort(dim=-1, descending=True, stable=True)
    ordered = _warmed(ordered, batch.truncated_temperature)
    rank = torch.arange(ordered.shape[-1], device=ordered.device)
    ordered.masked_fill_(rank >= batch.top_k[:, None], -torch.inf)
    probabilities = torch.softmax(ordered, dim=-1)
    before = probabilities.cumsum(dim=-1) - probabilities
    probabilities.masked_fill_((before >= batch.top_p[:, None]) & (rank > 0), 0.0)
    probabilities.masked_fill_(probabilities < batch.min_p[:, None] * probabilities[:, :1], 0.0)
    drawn = _invert(probabilities, batch.truncated_uniform)
    return order.gather(1, drawn[:, None])[:, 0]


def _warmed(logits: Tensor, temperature: Tensor) -> Tensor:
    """Logits over temperature, the largest moved to 0 first: a tiny temperature then makes the others -inf, never
    NaN."""
    return (logits - logits.amax(dim=-1, keepdim=True)) / temperature[:, None]


def _invert(probabilities: Tensor, uniform: Tensor) -> Tensor:
    """The first index whose cumulative probability exceeds `uniform` of the total; never one of probability zero."""
    cumulative = probabilities.double().cumsum(dim=-1)
    target = uniform.double() * cumulative[:, -1]
    return torch.searchsorted(cumulative, target[:, None], right=True)[:, 0].clamp_(max=probabilities.shape[-1] - 1)
