"""From requests to the batch that the sampling op takes."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray

from appliance.engine.request import Request, SeenTokens
from kernels.sampling.batch import Row, SamplingBatch, pack
from kernels.sampling.random import uniform

_PLAIN = Row()


def sampling_batch(
    requests: Sequence[Request], vocab_size: int, eos_token_ids: frozenset[int], device: torch.device
) -> SamplingBatch:
    """One row a request, in order."""
    if all(request.is_plain for request in requests):
        return SamplingBatch()
    wanted = [r.sampling.logprobs for r in requests if r.sampling.logprobs is not None]
    rows = [_PLAIN if request.is_plain else _row(request, vocab_size, eos_token_ids) for request in requests]
    return pack(rows, device, max(wanted) if wanted else None)


def _row(request: Request, vocab_size: int, eos_token_ids: frozenset[int]) -> Row:
    params = request.sampling
    position = len(request.output_token_ids)
    row = _PLAIN
    if not request.is_greedy:
        row = Row(params.temperature, uniform(request.seed, position), max(params.top_k, 0), params.top_p, params.min_p)
    if position < params.min_tokens:
        ends = eos_token_ids.union(params.stop_token_ids)
        row = row._replace(forbidden=[token for token in ends if 0 <= token < vocab_size])
    if request.has_penalties:
        row = row._replace(
            presence=params.presence_penalty,
            frequency=params.frequency_penalty,
            repetition=params.repetition_penalty,
            seen=_seen(request),
        )
    return row


def _seen(request: Request) -> NDArray[np.int32]:
    if request.seen_tokens is None:
        # Only the penalty for repetition minds the prompt.
        request.seen_tokens = SeenTokens(request.prompt_token_ids if request.sampling.repetition_penalty != 1 else ())
    return request.seen_tokens.count(request.output_token_ids)
