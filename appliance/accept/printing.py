"""A report on a terminal."""

from __future__ import annotations

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from appliance.accept.report import Check, Report
from appliance.accept.words import VERDICTS, bound, by_section, figure, minutes, remark, status

STYLES = {"ok": "green", "failed": "bold red", "not run": "yellow"}
VERDICT_STYLES = {"accepted": "bold green", "not accepted": "bold red", "incomplete": "bold yellow"}
MOST_NAMED = 5


def show(report: Report, console: Console | None = None) -> None:
    console = console or Console(highlight=False)
    console.print()
    console.print(Text.assemble((report.model, "bold"), f" at {report.url}, {minutes(report.seconds)}"), soft_wrap=True)
    console.print()
    console.print(_checks(report))
    for check in report.checks:
        _failures(console, check)
    if report.needles:
        console.print()
        console.print(_needles(report))
    console.print()
    for note in report.notes:
        console.print(Text(f"Note: {note}", "yellow"), soft_wrap=True)
    verdict = (VERDICTS[report.verdict], VERDICT_STYLES[report.verdict])
    console.print(Text.assemble(verdict, f": {report.summary}"), soft_wrap=True)


def _checks(report: Report) -> Table:
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1), pad_edge=False, show_edge=False)
    table.add_column("check", no_wrap=True)
    table.add_column("figure", justify="right", no_wrap=True)
    table.add_column("bound", justify="right", no_wrap=True)
    table.add_column("", no_wrap=True)
    table.add_column("", style="dim", overflow="fold")
    for _, checks in by_section(report):
        for check in checks:
            said = status(check)
            table.add_row(check.id, figure(check), bound(check), Text(said, STYLES[said]), remark(check))
        table.add_section()
    return table


def _failures(console: Console, check: Check) -> None:
    if check.ok is not False or not check.failures:
        return
    console.print()
    console.print(Text(f"{check.id}: {check.title}", "red"), soft_wrap=True)
    for failure in check.failures[:MOST_NAMED]:
        place = "" if failure.position is None else f", position {failure.position:,}"
        console.print(Text(f"  {failure.prompt}{place}"), soft_wrap=True)
        console.print(Text(f"    expected {failure.expected}"), soft_wrap=True)
        console.print(Text(f"    got      {failure.got}"), soft_wrap=True)
    if (more := len(check.failures) - MOST_NAMED) > 0:
        console.print(Text(f"  and {more:,} more in the report", "dim"))


def _needles(report: Report) -> Table:
    depths = sorted({cell.depth for cell in report.needles})
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1), pad_edge=False, show_edge=False)
    table.add_column("needle, tokens", justify="right", no_wrap=True)
    for depth in depths:
        table.add_column(f"depth {depth:.0%}", no_wrap=True)
    for length in sorted({cell.length for cell in report.needles}):
        cells = {cell.depth: cell for cell in report.needles if cell.length == length}
        row = [
            Text("found" if cells[depth].found else "missed", "green" if cells[depth].found else "yellow")
            if depth in cells
            else Text("–")
            for depth in depths
        ]
        table.add_row(f"{length:,}", *row)
    return table
