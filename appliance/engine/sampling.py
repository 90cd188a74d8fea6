"""From requests to the batch that the sampling op takes."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from appliance.engine.histories import TokenHistories
from appliance.engine.request import Request
from kernels.sampling.batch import Row, SamplingBatch, pack
from kernels.sampling.random import uniform

_PLAIN = Row()


def sampling_batch(requests: Sequence[Request], histories: TokenHistories, device: torch.device) -> SamplingBatch:
    """One row a request, in order."""
    if all(request.is_plain for request in requests):
        return SamplingBatch()
    wanted = [r.sampling.logprobs for r in requests if r.sampling.logprobs is not None]
    rows = [_PLAIN if request.is_plain else _row(request) for request in requests]
    return pack(rows, device, max(wanted) if wanted else None, histories.edits(requests))


def _row(request: Request) -> Row:
    params = request.sampling
    row = _PLAIN
    if not request.is_greedy:
        number = uniform(request.seed, request.num_sampled)
        row = Row(params.temperature, number, max(params.top_k, 0), params.top_p, params.min_p)
    if request.has_penalties:
        row = row._replace(
            presence=params.presence_penalty,
            frequency=params.frequency_penalty,
            repetition=params.repetition_penalty,
        )
    return row
