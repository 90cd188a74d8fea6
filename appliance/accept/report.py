"""The result of an acceptance, as data: what `--json` writes, and what the terminal and the page show."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Final, Literal

import msgspec

from appliance.accept.checks import CHECKS, Better, section_of

MOST_FAILURES: Final = 20  # of one check, shown; all are counted

Verdict = Literal["accepted", "not accepted", "incomplete"]


class Failure(msgspec.Struct, frozen=True, kw_only=True):
    """`prompt` names the request; `position` is the token's place, None where the whole answer is wrong."""

    prompt: str
    position: int | None = None
    expected: str
    got: str


class Check(msgspec.Struct, frozen=True, kw_only=True):
    """`ok` is None for a check that was not run, and `reason` says why. `cut_off`: because the run ended early."""

    id: str
    title: str
    ok: bool | None
    figure: float | None = None
    bound: float | None = None
    better: Better = "exactly"
    reason: str = ""
    detail: str = ""
    cut_off: bool = False
    failures: list[Failure] = []


class Cell(msgspec.Struct, frozen=True, kw_only=True):
    """One needle: `length` of its prompt in tokens, `depth` a share; `expected_found` is what the oracle holds."""

    length: int
    depth: float
    found: bool
    expected_found: bool | None = None
    answer: str
    seconds: float


class Moment(msgspec.Struct, frozen=True, kw_only=True):
    """A step of the soak: answers, and the mean seconds per token of those that ended in it."""

    at_s: float
    answers: int
    seconds_per_token: float


class OracleUsed(msgspec.Struct, frozen=True, kw_only=True):
    file: str
    sha256: str
    recorded: str
    engine: str
    dtype: str
    prompts: int
    needles: int


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """`sections` are those that were asked for; `environment` has (name, value)."""

    schema: int = 1
    kind: str = "ingot-acceptance"
    verdict: Verdict
    summary: str
    interrupted: bool
    url: str
    model: str
    started: str
    seconds: float
    sections: list[str]
    seed: int
    environment: list[tuple[str, str]]
    oracles: list[OracleUsed]
    checks: list[Check]
    needles: list[Cell] = []
    soak: list[Moment] = []
    notes: list[str] = []


class Book:
    """Takes the results down, in the order of CHECKS in the end. `until_then` says of checks that are cut off how far
    they came."""

    def __init__(self) -> None:
        self._checks: dict[str, Check] = {}
        self.needles: list[Cell] = []
        self.soak: list[Moment] = []
        self.notes: list[str] = []
        self.until_then: dict[str, str] = {}

    def measured(
        self, check: str, figure: float, bound: float, *, detail: str = "", failures: Sequence[Failure] = ()
    ) -> None:
        kind = CHECKS[check]
        # A NaN is within no bound.
        ok = figure >= bound if kind.better == "at least" else figure <= bound
        self._checks[check] = Check(
            id=check,
            title=kind.title,
            ok=ok,
            figure=figure,
            bound=bound,
            better=kind.better,
            detail=detail,
            failures=list(failures)[:MOST_FAILURES],
        )

    def counted(self, check: str, failures: Sequence[Failure], *, of: int, what: str, detail: str = "") -> None:
        """None may have failed of `of`; where there were none at all, nothing was checked."""
        if not of:
            self.not_run(check, f"there were no {what} to check")
            return
        counted = f"{what}: {of:,}"
        self.measured(check, len(failures), 0, detail=f"{counted}; {detail}" if detail else counted, failures=failures)

    def not_run(self, check: str, reason: str, *, cut_off: bool = False, detail: str = "") -> None:
        kind = CHECKS[check]
        self._checks[check] = Check(
            id=check, title=kind.title, ok=None, better=kind.better, reason=reason, cut_off=cut_off, detail=detail
        )

    def __contains__(self, check: str) -> bool:
        return check in self._checks

    def checks(self) -> list[Check]:
        return [self._checks[check] for check in CHECKS if check in self._checks]


def verdict_of(checks: Sequence[Check], *, strict: bool) -> Verdict:
    """Nothing is accepted by what was not run: one check must have passed, and none been cut off. `strict`: every one
    must have passed."""
    if any(check.ok is False for check in checks):
        return "not accepted"
    left_out = [check for check in checks if check.ok is None]
    if any(check.cut_off for check in left_out):
        return "incomplete"
    judged = [check for check in checks if check.ok and section_of(check.id) != "identity"]
    return "accepted" if judged and not (strict and left_out) else "not accepted"


def summary_of(checks: Sequence[Check]) -> str:
    passed, failed = (sum(check.ok is ok for check in checks) for ok in (True, False))
    left_out = len(checks) - passed - failed
    parts = [f"{passed:,} of {len(checks):,} checks passed"]
    if failed:
        parts.append(f"{failed:,} failed")
    if left_out:
        parts.append(f"{left_out:,} {'was' if left_out == 1 else 'were'} not run")
    return ", ".join(parts) + "."


def as_json(report: Report) -> str:
    return msgspec.json.format(msgspec.json.encode(report)).decode() + "\n"


def fingerprint(text: str) -> str:
    """By which a signed page names the file of `--json`."""
    return hashlib.sha256(text.encode()).hexdigest()
