"""Known answers: what a checkpoint says to given prompts, token by token, and whether an engine still says so."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

import msgspec

MODEL = Path(__file__).with_name("model")
ANSWERS = Path(__file__).with_name("answers.json")

# How far the log of a token's probability may move between two builds or two GPUs that both compute rightly. The
# coarser formats round every product and sum: bfloat16 keeps 8 bits, float16 11.
TOLERANCE: dict[str, float] = {"float32": 1e-3, "float16": 0.05, "bfloat16": 0.25}


class Answer(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Greedy: `token_ids` follow `prompt_token_ids`, each with the natural log of its probability."""

    prompt_token_ids: list[int]
    token_ids: list[int]
    logprobs: list[float]
    question: str = ""


class KnownAnswers(msgspec.Struct, frozen=True, kw_only=True):
    """`tolerance` is the largest difference of a logprob, by dtype."""

    model_digest: str
    tolerance: dict[str, float]
    answers: list[Answer]


def read_known(path: Path = ANSWERS) -> KnownAnswers:
    """Raises FileNotFoundError, or msgspec.DecodeError where the file is damaged."""
    return msgspec.json.decode(path.read_bytes(), type=KnownAnswers)


def difference(expected: Answer, got: Answer, tolerance: float, *, exact: bool = False) -> str | None:
    """How `got` differs from `expected`, in words; None where it does not.

    With `exact`, every token must be the same. Without, two tokens that are equally likely within the tolerance may
    change places; what follows them is then another text, and is not compared.
    """
    if bad := _not_finite(got.logprobs):
        return f"the logprob of token {bad[0] + 1} is {got.logprobs[bad[0]]}"
    if len(got.logprobs) != len(got.token_ids):
        return f"{len(got.token_ids)} tokens came with {len(got.logprobs)} logprobs"
    for index, (token, wanted) in enumerate(zip(got.token_ids, expected.token_ids, strict=False)):
        apart = abs(got.logprobs[index] - expected.logprobs[index])
        if token != wanted and (exact or apart > tolerance):
            return f"token {index + 1} is {token} and was {wanted} (logprobs {apart:.4f} apart)"
        if apart > tolerance:
            return (
                f"the logprob of token {index + 1} ({token}) is {got.logprobs[index]:.5f} and was "
                f"{expected.logprobs[index]:.5f}, which differs by more than {tolerance:g}"
            )
        if token != wanted:
            return None
    if len(got.token_ids) != len(expected.token_ids):
        return f"it has {len(got.token_ids)} tokens and had {len(expected.token_ids)}"
    return None


def _not_finite(values: Sequence[float]) -> list[int]:
    return [index for index, value in enumerate(values) if not math.isfinite(value)]
