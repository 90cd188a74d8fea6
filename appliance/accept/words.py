"""A report's figures in words, for the terminal and the page."""

from __future__ import annotations

import math

from appliance.accept.checks import SECTIONS, section_of
from appliance.accept.report import Check, Report

VERDICTS = {"accepted": "Accepted", "not accepted": "Not accepted", "incomplete": "Incomplete"}


def number(value: float) -> str:
    """Counts as they are, others with three digits."""
    if not math.isfinite(value):
        return "∞"
    if value == int(value) and abs(value) < 1e9:
        return f"{int(value):,}"
    return f"{value:.3g}"


def figure(check: Check) -> str:
    return "–" if check.figure is None else number(check.figure)


def bound(check: Check) -> str:
    if check.bound is None:
        return ""
    sign = {"at most": "≤ ", "at least": "≥ ", "exactly": ""}[check.better]
    return sign + number(check.bound)


def status(check: Check) -> str:
    return "not run" if check.ok is None else "ok" if check.ok else "failed"


def remark(check: Check) -> str:
    return "; ".join(filter(None, (check.reason, check.detail)))


def by_section(report: Report) -> list[tuple[str, list[Check]]]:
    """Title and checks of each section that has some."""
    found = [
        (title, [check for check in report.checks if section_of(check.id) == name]) for name, title in SECTIONS.items()
    ]
    return [(title, checks) for title, checks in found if checks]


def minutes(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds < 120 else f"{seconds / 60:.0f} min"
