"""A report on a terminal."""

from __future__ import annotations

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from appliance.bench.report import Durations, Report
from appliance.bench.words import LATENCIES, describe_load, describe_requests, duration, figures


def show(report: Report, console: Console | None = None) -> None:
    console = console or Console(highlight=False)
    console.print()
    console.print(Text.assemble((report.model, "bold"), f" at {report.url}, {report.api}"), soft_wrap=True)
    console.print(Text(describe_load(report)), soft_wrap=True)
    console.print(Text(describe_requests(report), "yellow" if report.failed or report.interrupted else ""))
    if report.completed:
        console.print()
        console.print(_latencies(report))
        console.print()
        console.print(_figures(report))
    for failure in report.failures:
        console.print(Text.assemble((f"{failure.count:,} x {failure.kind}: ", "red"), failure.first_message))
    for note in report.notes:
        console.print(Text(f"Note: {note}", "yellow"))


def _latencies(report: Report) -> Table:
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1), pad_edge=False, show_edge=False)
    table.add_column("latency", no_wrap=True)
    for title in ("mean", "p50", "p90", "p95", "p99", "max"):
        table.add_column(title, justify="right", no_wrap=True)
    for name, (title, _) in LATENCIES.items():
        row: Durations = getattr(report.latency_s, name)
        cells = (row.mean, row.p50, row.p90, row.p95, row.p99, row.most)
        table.add_row(title, *(duration(cell) if row.count else "-" for cell in cells))
    return table


def _figures(report: Report) -> Table:
    table = Table(box=None, show_header=False, padding=(0, 2, 0, 0), pad_edge=False)
    table.add_column(style="dim", no_wrap=True)
    table.add_column(justify="right", no_wrap=True)
    for title, value in figures(report):
        table.add_row(title, value)
    return table
