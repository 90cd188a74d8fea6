"""Applies the fixes that are patches, in rounds until none is left: one problem may hide the next."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, Literal

from appliance.preflight.context import PreflightContext, Report
from appliance.preflight.runner import run
from appliance.profile import document
from appliance.protocol import Finding, Severity

Which = Literal["errors", "all"]

# What a person has to decide: that a folder which is not the expected model is the one to run.
TO_DECIDE: Final = ("digest-differs",)
ROUNDS: Final = 5


@dataclass(frozen=True)
class Applied:
    """A finding whose fix was applied, and what it changed."""

    finding: Finding
    patch: Mapping[str, Any]


@dataclass(frozen=True)
class Fixed:
    """`report` is of the document as it is now."""

    document: dict[str, Any]
    applied: tuple[Applied, ...]
    report: Report

    @property
    def patch(self) -> dict[str, Any]:
        """All that was changed, as one."""
        return {key: value for applied in self.applied for key, value in applied.patch.items()}


def apply_fixes(context: PreflightContext, which: Which) -> Fixed:
    """`which` says whether warnings are fixed too. Nothing is written, and no command is run."""
    current = dict(context.document)
    seen, applied = [current], list[Applied]()
    report = run(context)
    for _ in range(ROUNDS):
        chosen = list(_compatible(_patched(report.findings, which)))
        fixed = current
        for one in chosen:
            fixed = document.apply_patch(fixed, one.patch)
        if fixed in seen:  # nothing to do, or two fixes that undo each other
            break
        current = fixed
        seen.append(current)
        applied += chosen
        report = run(replace(context, document=current))
    return Fixed(current, tuple(applied), report)


def joined(findings: Iterable[Finding], which: Which) -> dict[str, Any]:
    """One patch that does what the fixes of these findings do, as far as they do not touch the same settings."""
    return {key: value for one in _compatible(_patched(list(findings), which)) for key, value in one.patch.items()}


def _patched(findings: Sequence[Finding], which: Which) -> Iterator[Applied]:
    """Errors first: a warning's fix gives way to theirs."""
    severities = (Severity.ERROR,) if which == "errors" else (Severity.ERROR, Severity.WARNING)
    for severity in severities:
        for finding in findings:
            if finding.severity is severity and finding.fix and finding.fix.patch and finding.id not in TO_DECIDE:
                yield Applied(finding, finding.fix.patch)


def _compatible(fixes: Iterable[Applied]) -> Iterator[Applied]:
    """Those that touch no setting that one before them touches; the others have their turn in the next round."""
    touched: set[str] = set()
    for one in fixes:
        if touched.isdisjoint(one.patch):
            touched.update(one.patch)
            yield one
