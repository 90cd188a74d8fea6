"""From requests to the tensors that the sampling op takes."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from appliance.engine.request import Request
from kernels.sampling.batch import Penalties, SamplingBatch
from kernels.sampling.random import uniform


def sampling_batch(
    requests: Sequence[Request], vocab_size: int, eos_token_ids: frozenset[int], device: torch.device
) -> SamplingBatch:
    """One row a request, in order."""
    plain = [i for i, r in enumerate(requests) if r.sampling.temperature > 0 and not _truncates(r)]
    truncated = [i for i, r in enumerate(requests) if r.sampling.temperature > 0 and _truncates(r)]

    def floats(rows: list[int], values: list[float]) -> torch.Tensor | None:
        return torch.tensor(values, dtype=torch.float32, device=device) if rows else None

    def temperatures(rows: list[int]) -> torch.Tensor | None:
        return floats(rows, [requests[i].sampling.temperature for i in rows])

    def uniforms(rows: list[int]) -> torch.Tensor | None:
        return floats(rows, [uniform(requests[i].seed, len(requests[i].output_token_ids)) for i in rows])

    wanted = [r.sampling.logprobs for r in requests if r.sampling.logprobs is not None]
    return SamplingBatch(
        plain_rows=plain,
        plain_temperature=temperatures(plain),
        plain_uniform=uniforms(plain),
        truncated_rows=truncated,
        truncated_temperature=temperatures(truncated),
        truncated_uniform=uniforms(truncated),
        top_k=torch.tensor([requests[i].sampling.top_k or vocab_size for i in truncated], device=device)
        if truncated
        else None,
        top_p=floats(truncated, [requests[i].sampling.top_p for i in truncated]),
        min_p=floats(truncated, [requests[i].sampling.min_p for i in truncated]),
        penalties=[
            Penalties(
                i,
                torch.tensor(r.prompt_token_ids, dtype=torch.int64, device=device),
                torch.tensor(r.output_token_ids, dtype=torch.int64, device=device),
                r.sampling.presence_penalty,
                r.sampling.frequency_penalty,
                r.sampling.repetition_penalty,
            )
            for i, r in enumerate(requests)
            if _penalises(r)
        ],
        forbidden=[
            (i, sorted(eos_token_ids.union(r.sampling.stop_token_ids)))
            for i, r in enumerate(requests)
            if len(r.output_token_ids) + 1 < r.sampling.min_tokens
        ],
        logprobs=max(wanted) if wanted else None,
    )


def _truncates(request: Request) -> bool:
    params = request.sampling
    return params.top_k > 0 or params.top_p < 1 or params.min_p > 0


def _penalises(request: Request) -> bool:
    params = request.sampling
    return bool(params.presence_penalty or params.frequency_penalty) or params.repetition_penalty != 1
