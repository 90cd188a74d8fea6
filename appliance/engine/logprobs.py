"""How likely the model found what it wrote, and the tokens of a prompt: from a step's tensors to messages."""

from __future__ import annotations

from typing import Final

from appliance.core_protocol import TokenLogprob
from appliance.engine.prompt_scores import PromptScores
from appliance.engine.runner import StepResult

# OpenAI's API uses this for tokens that are too unlikely; JSON has no infinity.
LEAST_LOGPROB: Final = -9999.0


def token_logprobs(result: StepResult) -> list[tuple[TokenLogprob, ...]]:
    """Of each item in `result.sampled`, one for each of its tokens; () where none are asked for."""
    if result.logprobs is None or result.top_logprobs is None or result.top_token_ids is None:
        return [()] * len(result.sampled)
    chosen = result.logprobs.clamp(min=LEAST_LOGPROB).tolist()
    tops = result.top_logprobs.clamp(min=LEAST_LOGPROB).tolist()
    top_ids = result.top_token_ids.tolist()
    found: list[tuple[TokenLogprob, ...]] = []
    for item, token_ids, first in result.sampled:
        count = item.request.sampling.logprobs
        found.append(
            tuple(
                TokenLogprob(token_id, chosen[row], tuple(zip(top_ids[row][:count], tops[row][:count], strict=True)))
                for row, token_id in enumerate(token_ids, first)
                if count is not None and token_id is not None
            )
        )
    return found


def keep_scores(scores: PromptScores) -> None:
    """In place of those that were known before a preemption, if these are computed again."""
    known, first = scores.request.prompt_logprobs, scores.start - 1
    count, alternatives = scores.top_token_ids.shape
    own, tops = (
        each.nan_to_num(nan=LEAST_LOGPROB).clamp(min=LEAST_LOGPROB).flatten().tolist()
        for each in (scores.logprobs, scores.top_logprobs)
    )
    known.logprobs[first : first + count] = own
    of_tops = slice(first * alternatives, (first + count) * alternatives)
    known.top_logprobs[of_tops] = tops
    known.top_token_ids[of_tops] = scores.top_token_ids.flatten().tolist()
