"""Runs every check and gathers what they find."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any, Literal

import msgspec

from appliance.checkpoint.errors import CheckpointError
from appliance.preflight.context import CheckResult, PreflightContext, Report
from appliance.preflight.registry import CHECKS, Check
from appliance.preflight.subject import Subject
from appliance.profile.shown import plain
from appliance.protocol import Finding, Fix, Severity


def run(context: PreflightContext, checks: Sequence[Check] = CHECKS) -> Report:
    """All findings, in the order of the checks. Reads the folder's small files and headers, never the weights. There
    is a plan only where every check was asked for."""
    subject = Subject(context)
    findings: list[Finding] = []
    results: list[CheckResult] = []
    stopped: set[str] = set()
    for check in checks:
        if subject.engine not in check.engines:
            continue
        if stopped.intersection(check.after):
            stopped.add(check.id)
            results.append(CheckResult(id=check.id, title=check.title, group=check.group, outcome="skipped"))
            continue
        if not check.concerns(subject):
            continue
        started = time.perf_counter()
        found = _run_one(check, subject)
        seconds = time.perf_counter() - started
        outcome = _outcome(found)
        if outcome == "error":
            stopped.add(check.id)
        findings += found
        results.append(CheckResult(id=check.id, title=check.title, group=check.group, outcome=outcome, seconds=seconds))
    return Report(findings=findings, plan=subject.plan() if checks is CHECKS and not stopped else None, checks=results)


def _run_one(check: Check, subject: Subject) -> list[Finding]:
    found: list[Finding] = []
    try:
        found.extend(check.run(subject))  # what was found before an error is kept
    except CheckpointError as error:
        found.append(error.finding())
    except OSError as error:  # a folder that changes, or may not be read, while it is looked at
        found.append(
            Finding(
                id=f"{check.id}-unreadable",
                severity=Severity.ERROR,
                message=f"{error.filename or 'A file'} cannot be read: {error.strerror or error}.",
                field="model.path",
                fix=Fix(text="Make it a folder that the user of this process may read, and try again."),
            )
        )
    return [_writable(finding) for finding in found]


def _writable(finding: Finding) -> Finding:
    """As JSON can hold it: names of files and variables may be bytes that are no text, which Python shows as halves of
    characters."""
    try:
        msgspec.json.encode(finding)
    except UnicodeEncodeError:
        return msgspec.convert(_plain(msgspec.to_builtins(finding)), Finding)
    return finding


def _plain(data: Any) -> Any:
    if isinstance(data, str):
        return plain(data)
    if isinstance(data, dict):
        return {_plain(key): _plain(value) for key, value in data.items()}
    return [_plain(item) for item in data] if isinstance(data, list) else data


def _outcome(found: list[Finding]) -> Literal["passed", "warning", "error"]:
    severities = {finding.severity for finding in found}
    if Severity.ERROR in severities:
        return "error"
    return "warning" if Severity.WARNING in severities else "passed"
