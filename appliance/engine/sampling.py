"""From requests to the batch that the sampling op takes."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from appliance.engine.request import Request
from kernels.sampling.batch import Row, SamplingBatch, pack
from kernels.sampling.random import uniform

_GREEDY = Row()


def sampling_batch(
    requests: Sequence[Request], vocab_size: int, eos_token_ids: frozenset[int], device: torch.device
) -> SamplingBatch:
    """One row a request, in order."""
    wanted = [r.sampling.logprobs for r in requests if r.sampling.logprobs is not None]
    rows = [_row(request, vocab_size, eos_token_ids) for request in requests]
    return pack(rows, device, max(wanted) if wanted else None)


def _row(request: Request, vocab_size: int, eos_token_ids: frozenset[int]) -> Row:
    params = request.sampling
    position = len(request.output_token_ids)
    # Top-k keeps all of equally likely tokens; who asks for one token wants the same one each time.
    greedy = params.temperature == 0 or params.top_k == 1
    row = _GREEDY
    if not greedy:
        row = Row(params.temperature, uniform(request.seed, position), max(params.top_k, 0), params.top_p, params.min_p)
    if position + 1 < params.min_tokens:
        ends = eos_token_ids.union(params.stop_token_ids)
        row = row._replace(forbidden=[token for token in ends if 0 <= token < vocab_size])
    if params.presence_penalty or params.frequency_penalty or params.repetition_penalty != 1:
        row = row._replace(
            presence=params.presence_penalty,
            frequency=params.frequency_penalty,
            repetition=params.repetition_penalty,
            seen=_seen(request),
        )
    return row


def _seen(request: Request) -> dict[int, int]:
    """How often each token of prompt and output stands in the output, brought up to date."""
    if request.seen_tokens is None:
        # Only the penalty for repetition minds the prompt.
        prompt = request.prompt_token_ids if request.sampling.repetition_penalty != 1 else ()
        request.seen_tokens = dict.fromkeys(prompt, 0)
    seen = request.seen_tokens
    for token in request.output_token_ids[request.num_seen_outputs :]:
        seen[token] = seen.get(token, 0) + 1
    request.num_seen_outputs = len(request.output_token_ids)
    return seen
