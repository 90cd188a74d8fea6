"""Runs every check and gathers what they find."""

from __future__ import annotations

import errno
import time
from collections.abc import Callable, Sequence
from typing import Any, Final, Literal, TypeVar

import msgspec

from appliance.checkpoint.errors import CheckpointError
from appliance.hardware.device import DeviceError
from appliance.preflight.context import CheckResult, PreflightContext, Report
from appliance.preflight.engine_subjects import subject_of
from appliance.preflight.registry import CHECKS, ENVIRONMENT, LIBRARIES, MACHINE, MODEL, Check
from appliance.preflight.restored import with_restoring
from appliance.preflight.subject import Subject
from appliance.profile.schema import ProfileError
from appliance.profile.shown import plain
from appliance.protocol import Finding, Fix, Severity

T = TypeVar("T")


def run(context: PreflightContext, checks: Sequence[Check] = CHECKS) -> Report:
    """All findings, in the order of the checks. Reads the folder's small files and headers, never the weights. There
    is a plan only where every check was asked for."""
    subject = subject_of(context)
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
        told = _run_one(check, subject)
        seconds = time.perf_counter() - started
        outcome = _outcome(told)
        found = [finding for finding in told if finding not in findings]  # a file may be read by several checks
        if outcome == "error":
            stopped.add(check.id)
        findings += found
        result = CheckResult(
            id=check.id,
            title=check.title,
            group=check.group,
            outcome="skipped" if told and not found else outcome,
            seconds=seconds,
        )
        results.append(result)
    if checks is not CHECKS:
        return Report(findings=findings, plan=None, checks=results)
    return Report(
        findings=findings,
        plan=None if stopped else subject.plan(),
        device=_as_far_as_told(lambda: subject.device),
        effective=_as_far_as_told(lambda: subject.effective),
        memory=_as_far_as_told(lambda: subject.memory),
        checks=results,
    )


def _as_far_as_told(part: Callable[[], T | None]) -> T | None:
    """None where a finding says why it is unknown."""
    try:
        return part()
    except (ProfileError, CheckpointError, DeviceError, OSError):
        return None


def _run_one(check: Check, subject: Subject) -> list[Finding]:
    found: list[Finding] = []
    try:
        found.extend(check.run(subject))  # what was found before an error is kept
    except CheckpointError as error:
        found.append(error.finding())
    except OSError as error:  # a folder that changes, or may not be read, while it is looked at
        found.append(_unreadable(check, error))
    folder = _as_far_as_told(lambda: subject.folder) if check.group == MODEL else None
    told = found if folder is None else with_restoring(found, folder)
    return [_writable(finding) for finding in told]


# What to do of an error by its number.
_MENDS: Final = {
    errno.EACCES: Fix(text="Give this user read access and try again."),
    errno.EPERM: Fix(text="Give this user read access and try again."),
    errno.EMFILE: Fix(text="Raise this process's limit of open files and try again.", look="ulimit -n"),
    errno.ENFILE: Fix(text="The machine has too many open files. Raise its limit.", look="sysctl fs.file-max"),
    errno.EIO: Fix(text="The disk is failing. The kernel log shows more.", look="sudo dmesg"),
    errno.ESTALE: Fix(text="The file server is gone or the folder changed. Mount it again."),
}
_ANY: Final = Fix(text="Try again; the file may have been changing. If it happens again, check the kernel log.")


def _unreadable(check: Check, error: OSError) -> Finding:
    """An error that a check did not foresee. What only warns of slowness and risk keeps no launch from being tried."""
    file = f"{error.filename!s} cannot be read" if error.filename is not None else "A file cannot be read"
    return Finding(
        id=f"{check.id}-unreadable",
        severity=Severity.WARNING if check.group in (LIBRARIES, ENVIRONMENT, MACHINE) else Severity.ERROR,
        message=f'"{check.title}" could not be checked. {file}: {error.strerror or error}.',
        field="model.path" if check.group == MODEL else None,
        evidence=() if error.filename is None else (str(error.filename),),
        fix=_MENDS.get(error.errno or 0, _ANY),
    )


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
