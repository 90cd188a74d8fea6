"""From requests to the batch that the sampling op takes."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from appliance.engine.grammar import masks
from appliance.engine.histories import TokenHistories
from appliance.engine.request import Request
from kernels.sampling.batch import Row, SamplingBatch, pack
from kernels.sampling.random import uniform

_PLAIN = Row()


def sampling_batch(
    requests: Sequence[Request], histories: TokenHistories, device: torch.device, ahead: Sequence[int] | None = None
) -> SamplingBatch:
    """One row a request, in order; one that has drafts comes once more for each, `ahead` of what it has sampled by so
    many tokens. What is sampled for requests that have ended meanwhile does not matter."""
    if all(request.is_plain for request in requests):
        return SamplingBatch()
    wanted = [r.sampling.logprobs for r in requests if r.sampling.logprobs is not None]
    places = ahead or [0] * len(requests)
    rows = [
        _PLAIN if request.is_plain else _row(request, place) for request, place in zip(requests, places, strict=True)
    ]
    edits, allowed = histories.edits(requests), _allowed(requests, device)
    return pack(rows, device, max(wanted) if wanted else None, edits, allowed)


def _allowed(requests: Sequence[Request], device: torch.device) -> Tensor | None:
    """What the masks of running requests allow, as in `SamplingBatch.allowed`; None if there are none."""
    found = [
        (row, mask) for row, request in enumerate(requests) if request.is_running and (mask := request.mask) is not None
    ]
    if not found:
        return None
    allowed = torch.from_numpy(masks(found))
    # Pinned, since a copy from memory that is not would wait until the device has computed the step.
    return allowed.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else allowed


def _row(request: Request, ahead: int) -> Row:
    params = request.sampling
    row = _PLAIN
    if not request.is_greedy:
        number = uniform(request.seed, request.num_sampled + ahead)
        row = Row(params.temperature, number, max(params.top_k, 0), params.top_p, params.min_p)
    if request.has_penalties:
        row = row._replace(
            presence=params.presence_penalty,
            frequency=params.frequency_penalty,
            repetition=params.repetition_penalty,
        )
    if params.logit_bias:
        row = row._replace(biases=params.logit_bias)
    return row
