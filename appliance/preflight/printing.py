"""A report for people: how the checks went, then each finding with where and what to do."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import groupby

from rich.console import Console
from rich.text import Text

from appliance.plan.launch import LaunchPlan
from appliance.preflight.context import CheckResult, Report
from appliance.preflight.fixing import Fixed
from appliance.preflight.memory_bar import show_memory
from appliance.profile.document import Change
from appliance.profile.schema import BY_KEY, Type
from appliance.profile.sizes import format_size
from appliance.protocol import Finding, Severity

OUTCOMES = {
    "passed": ("ok", "green"),
    "warning": ("warning", "yellow"),
    "error": ("error", "bold red"),
    "skipped": ("skipped", "dim"),
}
SEVERITIES = {Severity.ERROR: "bold red", Severity.WARNING: "yellow", Severity.INFO: "cyan"}


def show(report: Report, console: Console | None = None, *, each: bool = False) -> None:
    """`each` shows every check by itself with its time, rather than the passed ones of a group, or all skipped ones,
    in one line."""
    console = console or _console()
    if each:
        for result in report.checks:
            _show_check(console, result, f"{result.seconds * 1000:6.1f} ms  ")
    else:
        for group, members in groupby(sorted(report.checks, key=_order(report.checks)), key=lambda r: r.group):
            _show_group(console, group, list(members))
        _show_skipped(console, sum(result.outcome == "skipped" for result in report.checks))
    for finding in report.findings:
        _show_finding(console, finding)
    console.print()
    errors = sum(finding.severity is Severity.ERROR for finding in report.findings)
    if report.plan is not None:
        _show_plan(console, report.plan)
    else:
        console.print(Text(f"Won't start: {errors} error{'s' if errors != 1 else ''}.", "bold red"))


def show_fixed(fixed: Fixed, changes: Sequence[Change], saved: str, console: Console | None = None) -> None:
    """What was changed and why, before what is left is shown."""
    console = console or _console()
    if not fixed.applied:
        console.print("No fix can be applied automatically.\n")
        return
    for one in fixed.applied:
        console.print(Text.assemble(("fixed", "bold green"), "  ", one.finding.message))
    for change in changes:
        console.print(Text(f"        - {change.key}: {_shown(change.key, change.before)}", "red"))
        console.print(Text(f"        + {change.key}: {_shown(change.key, change.after)}", "green"))
    console.print(Text(f"{saved}\n", "bold"))


def _shown(key: str, value: object) -> str:
    """A setting's value as people write it; what is no setting, such as a port, as it is."""
    if value is None:
        return "default"
    setting = BY_KEY.get(key)
    if setting is None or not isinstance(value, int) or isinstance(value, bool):
        return str(value)
    return str(format_size(value)) if setting.type is Type.SIZE else f"{value:,}"


def _console() -> Console:
    return Console(highlight=False, soft_wrap=True)


def _order(results: Sequence[CheckResult]) -> Callable[[CheckResult], int]:
    """Groups in the order of their first check."""
    groups = list(dict.fromkeys(result.group for result in results))
    return lambda result: groups.index(result.group)


def _show_group(console: Console, group: str, results: Sequence[CheckResult]) -> None:
    passed = [result for result in results if result.outcome == "passed"]
    rest = [result for result in results if result.outcome not in ("passed", "skipped")]
    if passed:
        whole = len(passed) == len(results)
        count = f"  {group} ({len(passed)})" if whole else f"  {group}: {len(passed)} of {len(results)}"
        console.print(Text.assemble((f"{'ok':>8}", "green"), count))
    for result in rest:
        _show_check(console, result)


def _show_skipped(console: Console, count: int) -> None:
    if count:
        word, style = OUTCOMES["skipped"]
        checks = "1 check, which depends" if count == 1 else f"{count} checks, which depend"
        console.print(Text.assemble((f"{word:>8}", style), f"  {checks} on a failed one"))


def _show_check(console: Console, result: CheckResult, before: str = "") -> None:
    word, style = OUTCOMES[result.outcome]
    console.print(Text.assemble((f"{word:>8}", style), "  ", (before, "dim"), result.title))


def _show_finding(console: Console, finding: Finding) -> None:
    console.print()
    console.print(
        Text.assemble((finding.severity.value, SEVERITIES[finding.severity]), "  ", (finding.message, "bold"))
    )
    lines = []
    if finding.field:
        value = "" if finding.value is None else f" = {_shown(finding.field, finding.value)}"
        lines.append(f"{finding.field}{value}")
    lines += finding.evidence
    for line in lines:
        _show_line(console, 9, Text(line, "dim"))
    if finding.fix:
        _show_line(console, 9, Text.assemble(("Fix: ", "green"), finding.fix.text))
        for key, value in (finding.fix.patch or {}).items():
            _show_line(console, 16, Text(f"remove {key}" if value is None else f"{key}: {value}", "green"))
        if finding.fix.command:
            _show_line(console, 16, Text(f"$ {finding.fix.command}", "green"))
        if finding.fix.look:
            _show_line(console, 9, Text.assemble(("To see more: ", "dim"), f"$ {finding.fix.look}"))


def _show_line(console: Console, indent: int, text: Text) -> None:
    """Whole, however long: the terminal wraps it, a pipe gets it as it is."""
    console.print(Text(" " * indent) + text)


def _show_plan(console: Console, plan: LaunchPlan) -> None:
    effective, memory = plan.effective, plan.memory
    where = "the CPU" if plan.device.gpu is None else str(plan.device.gpu)
    console.print(Text(f"{plan.profile.name} is ready to start.", "bold green"))
    if plan.config is None or effective is None:
        console.print(f"{plan.profile.engine} on {where}: {plan.device.why}.")
    else:
        console.print(f"{plan.config.architecture} in {effective['dtype'].value} on {where}: {plan.device.why}.")
    if memory is None:
        console.print("The engine works out its memory needs when it starts.")
        return
    show_memory(console, memory, "this machine" if plan.device.gpu is None else plan.device.gpu.name)
