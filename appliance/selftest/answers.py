"""Known answers: a checkpoint's answers to given prompts, token by token, and how to compare an engine with them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

import msgspec

MODEL = Path(__file__).with_name("model")
ANSWERS = Path(__file__).with_name("answers.json")

# How far a token's logprob may differ between two builds or GPUs that both compute correctly. The coarser formats round
# every product and sum: bfloat16 keeps 8 bits, float16 11.
TOLERANCE: dict[str, float] = {"float32": 1e-3, "float16": 0.05, "bfloat16": 0.25}

# How many of the likeliest tokens are requested at each place: the expected one must be among them.
ALTERNATIVES = 5


class Answer(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Greedy: `token_ids` follow `prompt_token_ids`, each with the natural log of its probability. `alternatives` are
    the likeliest tokens at each place, with theirs; what is written down to be compared with later has none."""

    prompt_token_ids: list[int]
    token_ids: list[int]
    logprobs: list[float]
    question: str = ""
    alternatives: list[dict[int, float]] = []

    def without_alternatives(self) -> Answer:
        return msgspec.structs.replace(self, alternatives=[])


class KnownAnswers(msgspec.Struct, frozen=True, kw_only=True):
    """`tolerance` is the largest difference of a logprob, by dtype."""

    model_digest: str
    tolerance: dict[str, float]
    answers: list[Answer]


def read_known(path: Path = ANSWERS) -> KnownAnswers:
    """Raises FileNotFoundError, or msgspec.DecodeError where the file is damaged."""
    return msgspec.json.decode(path.read_bytes(), type=KnownAnswers)


def difference(expected: Answer, got: Answer, tolerance: float, *, exact: bool = False) -> str | None:
    """How `got` differs from `expected`, in words; None if it does not.

    With `exact`, every token must be the same. Otherwise another token may be sampled where the expected one is equally
    likely within the tolerance; what follows is then a different text, and is not compared.
    """
    if bad := _not_finite(got.logprobs):
        return f"the logprob of token {bad[0] + 1} is {got.logprobs[bad[0]]}"
    if len(got.logprobs) != len(got.token_ids):
        return f"{len(got.token_ids)} tokens came with {len(got.logprobs)} logprobs"
    for index, (token, wanted) in enumerate(zip(got.token_ids, expected.token_ids, strict=False)):
        logprob = got.logprobs[index]
        if token != wanted:
            drawn, logprob = logprob, _alternatives(got, index).get(wanted, -math.inf)
            # A NaN is within no tolerance.
            if exact or not drawn - logprob <= tolerance:
                return f"token {index + 1} is {token} instead of {wanted} ({_behind(drawn - logprob)})"
        if not abs(logprob - expected.logprobs[index]) <= tolerance:
            return (
                f"the logprob of token {index + 1} ({wanted}) is {logprob:.5f} instead of "
                f"{expected.logprobs[index]:.5f}; at most {tolerance:g} apart is allowed"
            )
        if token != wanted:
            return None
    if len(got.token_ids) != len(expected.token_ids):
        return f"it has {len(got.token_ids)} tokens instead of {len(expected.token_ids)}"
    return None


def _alternatives(answer: Answer, index: int) -> dict[int, float]:
    return answer.alternatives[index] if index < len(answer.alternatives) else {}


def _behind(gap: float) -> str:
    if math.isinf(gap):
        return f"which is no longer among the {ALTERNATIVES} likeliest"
    return f"whose logprob is now {gap:.4f} lower"


def _not_finite(values: Sequence[float]) -> list[int]:
    return [index for index, value in enumerate(values) if not math.isfinite(value)]
