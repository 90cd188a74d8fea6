"""Whether two greedy answers to one prompt are the same, as far as the arithmetic of their dtype allows."""

from __future__ import annotations

import math
from typing import Final, NamedTuple

from appliance.accept.asking import Reply, Token
from appliance.selftest.answers import TOLERANCE

COARSEST: Final = "bfloat16"  # assumed of a server that does not tell its dtype
SHOWN: Final = 60


class Difference(NamedTuple):
    """The first place where two answers differ: its token, or its character where tokens are not known."""

    position: int
    expected: str
    got: str


class Sameness(NamedTuple):
    """`tied`: the answers part where both say of both tokens that they are equally likely within the tolerance, and are
    not compared after that; as batches differ in size, so does the rounding of their sums."""

    difference: Difference | None = None
    tied: bool = False


def tie_tolerance(dtype: str | None) -> float:
    """How far two computations of a logprob may differ, as a launch's self-test has it."""
    return TOLERANCE.get(dtype or COARSEST, TOLERANCE[COARSEST])


def compare(expected: Reply, got: Reply, tolerance: float) -> Sameness:
    """By tokens and logprobs where both have them, else by the text."""
    if expected.tokens and got.tokens:
        return compare_tokens(expected.tokens, got.tokens, tolerance)
    if expected.text == got.text and expected.finish_reason == got.finish_reason:
        return Sameness()
    return Sameness(_different_text(expected, got))


def compare_tokens(expected: list[Token], got: list[Token], tolerance: float) -> Sameness:
    for position, (wanted, have) in enumerate(zip(expected, got, strict=False)):
        if wanted.name != have.name:
            gaps = (_behind(wanted, have.name), _behind(have, wanted.name))
            if max(gaps) <= tolerance:
                return Sameness(tied=True)
            return Sameness(Difference(position, _shown(wanted), _shown(have)))
        if not _close(wanted.logprob, have.logprob, tolerance):
            return Sameness(Difference(position, _shown(wanted), _shown(have)))
    if len(expected) != len(got):
        return Sameness(Difference(min(len(expected), len(got)), f"{len(expected)} tokens", f"{len(got)} tokens"))
    return Sameness()


def _behind(token: Token, other: str) -> float:
    """How much less likely than `token` the `other` was at its place."""
    if token.logprob is None:
        return math.inf
    return token.logprob - token.top.get(other, -math.inf)


def _close(one: float | None, other: float | None, tolerance: float) -> bool:
    if one is None or other is None:
        return one is other
    return abs(one - other) <= tolerance


def _shown(token: Token) -> str:
    return f"{token.name.removeprefix('token_id:')} ({nats(token.logprob)})"


def nats(logprob: float | None) -> str:
    """Without a minus before zeros."""
    return "no logprob" if logprob is None else f"{round(logprob, 4) + 0.0:.4f}"


def _different_text(expected: Reply, got: Reply) -> Difference:
    if expected.text == got.text:
        return Difference(len(got.text), f"finish_reason {expected.finish_reason}", f"{got.finish_reason}")
    same = 0
    while same < min(len(expected.text), len(got.text)) and expected.text[same] == got.text[same]:
        same += 1
    return Difference(same, excerpt(expected.text[same:]), excerpt(got.text[same:]))


def excerpt(text: str) -> str:
    return repr(text if len(text) <= SHOWN else text[:SHOWN] + "…")
