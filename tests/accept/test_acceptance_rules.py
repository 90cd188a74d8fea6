"""What counts as the same answer, how far logprobs are apart, and when a site is accepted."""

from __future__ import annotations

import math
import re
from pathlib import Path
from typing import Any

import pytest

from appliance.accept.asking import Reply, Token
from appliance.accept.checks import CHECKS
from appliance.accept.needle import found, usual_lengths
from appliance.accept.oracle_checks import kl_divergence
from appliance.accept.report import Book, Check, Failure, verdict_of
from appliance.accept.sameness import compare, compare_tokens
from appliance.accept.tolerances import TOLERANCES, coarser, read_tolerances, tolerances_for

DOCUMENT = Path(__file__).parents[2] / "docs" / "accept.md"


def token(name: str, logprob: float | None, **top: float) -> Token:
    return Token(name, logprob, top)


A = token("a", -0.5, a=-0.5, b=-0.6, c=-3.0)
B = token("b", -0.55, b=-0.55, a=-0.58, c=-3.0)


@pytest.mark.parametrize(
    ("expected", "got", "tolerance", "different", "tied"),
    [
        ([A, A], [A, A], 0.0, None, False),
        ([A, A], [A, B], 0.2, None, True),
        ([A, A], [A, B], 0.01, 1, False),
        ([A, B], [A], 0.2, 1, False),  # it ends early
        ([A], [token("a", -0.9, a=-0.9)], 0.2, 0, False),  # the same token, less likely than it was
        ([A], [token("a", None)], 0.2, 0, False),
        ([A], [token("c", -0.1, c=-0.1, a=-3.0)], 0.2, 0, False),
        ([A], [token("b", -0.1, b=-0.1, a=-4.0)], 0.2, 0, False),  # a tie to one of the two only
        ([A, token("x", -1.0)], [B, token("y", -9.0)], 0.2, None, True),  # after a tie, texts are others
    ],
)
def test_answers_are_the_same_up_to_ties(
    expected: list[Token], got: list[Token], tolerance: float, different: int | None, tied: bool
):
    same = compare_tokens(expected, got, tolerance)
    assert (same.difference.position if same.difference else None, same.tied) == (different, tied)


def test_without_tokens_texts_are_compared():
    one, other = Reply(text="abc", finish_reason="stop"), Reply(text="abd", finish_reason="stop")
    assert compare(one, one, 0).difference is None
    assert compare(one, other, 0).difference.position == 2
    assert compare(one, Reply(text="abc", finish_reason="length"), 0).difference is not None


def test_divergence_is_of_the_shared_tokens():
    assert kl_divergence({"a": -1.0, "b": -2.0}, {"a": -1.5, "b": -2.5}) == pytest.approx(0)
    assert kl_divergence({"a": 0.0}, {"b": 0.0}) == math.inf
    p, q = {"a": math.log(0.75), "b": math.log(0.25)}, {"a": math.log(0.5), "b": math.log(0.5), "c": -9.0}
    assert kl_divergence(p, q) == pytest.approx(0.75 * math.log(1.5) + 0.25 * math.log(0.5))


def test_the_coarser_dtype_gives_the_bounds():
    assert coarser("float32", "float32") == "float32"
    assert coarser("float32", "bfloat16", "float16") == "bfloat16"
    assert coarser(None, "float32") == "bfloat16"
    assert tolerances_for("fp8", {"max": 0.3}).max == 0.3
    assert read_tolerances(("max=0.5", "top1=1")) == {"max": 0.5, "top1": 1.0}
    for finer, other in zip(list(TOLERANCES.values()), list(TOLERANCES.values())[1:], strict=False):
        assert (finer.max, finer.mean, finer.kl) < (other.max, other.mean, other.kl)
        assert finer.top1 > other.top1


@pytest.mark.parametrize(
    ("answer", "is_found"), [(" 12345.", True), ("12345", True), ("123456", False), ("x 12345", False), ("", False)]
)
def test_a_needle_is_found_only_as_it_is(answer: str, is_found: bool):
    assert found(answer, "12345") == is_found


def test_needles_reach_the_end_of_the_context():
    assert usual_lengths(2048)[-1] + 16 == 2048
    assert usual_lengths(200) == [128, 184]


def check(name: str, ok: bool | None, **more: Any) -> Check:
    return Check(id=name, title="", ok=ok, **more)


@pytest.mark.parametrize(
    ("checks", "strict", "verdict"),
    [
        ([check("oracle.max", True)], False, "accepted"),
        ([check("oracle.max", True), check("soak.drift", None)], False, "accepted"),
        ([check("oracle.max", True), check("soak.drift", None)], True, "not accepted"),
        ([check("oracle.max", True), check("soak.drift", False)], False, "not accepted"),
        ([check("oracle.max", True), check("soak.drift", None, cut_off=True)], False, "incomplete"),
        ([check("oracle.max", False), check("soak.drift", None, cut_off=True)], False, "not accepted"),
        ([check("oracle.max", None)], False, "not accepted"),
        ([check("identity.digest", True), check("oracle.max", None)], False, "not accepted"),
        ([], False, "not accepted"),
    ],
)
def test_nothing_is_accepted_by_what_was_not_run(checks: list[Check], strict: bool, verdict: str):
    assert verdict_of(checks, strict=strict) == verdict


def test_a_figure_that_is_none_is_within_no_bound():
    book = Book()
    book.measured("oracle.max", math.nan, 1.0)
    book.measured("oracle.top1", math.nan, 0.5)
    book.counted("mixed.form", [], of=0, what="answers")
    book.counted("mixed.same", [Failure(prompt="p", expected="a", got="b")] * 50, of=60, what="answers")
    checks = {each.id: each for each in book.checks()}
    assert checks["oracle.max"].ok is False
    assert checks["oracle.top1"].ok is False
    assert checks["mixed.form"].ok is None
    assert (checks["mixed.same"].figure, len(checks["mixed.same"].failures)) == (50, 20)


def test_the_document_names_every_check_and_its_bounds():
    text = DOCUMENT.read_text()
    named = set(re.findall(r"^\| `(\w+\.\w+)`", text, re.MULTILINE))
    assert named == set(CHECKS)
    for dtype, bounds in TOLERANCES.items():
        row = f"| {dtype} | {bounds.max:g} | {bounds.mean:g} | {bounds.kl:g} | {bounds.top1:g} |"
        assert row in text
