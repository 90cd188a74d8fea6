"""How likely the model finds each token of a prompt, from the hidden states with which it reads the prompt."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from appliance.engine.request import Request
from appliance.engine.scheduler import Scheduled


class PromptScores(NamedTuple):
    """Of `n` tokens of one prompt, which follow each other from the place `start`."""

    request: Request
    start: int
    logprobs: Tensor  # [n] float32
    top_logprobs: Tensor  # [n, k] float32, best first
    top_token_ids: Tensor  # [n, k] int64


def score_prompts(
    step: Sequence[Scheduled], hidden: Tensor, compute_logits: Callable[[Tensor], Tensor], rows_at_a_time: int
) -> list[PromptScores]:
    """What `step` tells of the prompts that want it. `hidden` [T, H] has the step's tokens in order."""
    scores: list[PromptScores] = []
    offset = 0
    for item in step:
        request, first = item.request, offset
        offset += item.num_tokens
        # Each token is scored by the one before it; the last one's successor is not of the prompt.
        targets = request.prompt_token_ids[item.start + 1 : item.context_len + 1]
        if request.wants_prompt_scores:
            for begin in range(0, len(targets), rows_at_a_time):
                part = targets[begin : begin + rows_at_a_time]
                rows = hidden[first + begin : first + begin + len(part)]
                scores.append(_score(request, item.start + 1 + begin, compute_logits(rows), part))
    return scores


def _score(request: Request, start: int, logits: Tensor, targets: Sequence[int]) -> PromptScores:
    logprobs = torch.log_softmax(logits, dim=-1)
    wanted = torch.tensor(targets, dtype=torch.int64).to(logits.device, non_blocking=True)
    top, top_ids = logprobs.topk(min(request.sampling.prompt_logprobs or 0, logits.shape[-1]), dim=-1)
    return PromptScores(request, start, logprobs.gather(1, wanted[:, None])[:, 0], top, top_ids)
