"""A report on a terminal: one table that reads well from 80 columns on, then what else there is to say."""

from __future__ import annotations

from collections.abc import Iterator

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from appliance.explain.report import OtherBackend, Report, Row
from appliance.explain.words import about, layers_label, op_label, sentences, source_label
from kernels.backend import Objection


def show(report: Report, *, everything: bool = False, console: Console | None = None) -> None:
    """`everything` lists all that stands against a backend, not only what decides."""
    console = console or Console(highlight=False)
    console.print(Text(report.profile, "bold") + Text(f": {about(report)}."))
    console.print()
    console.print(_table(report, everything))
    if any(row.sites for row in report.rows):
        console.print()
        console.print(_sites(report))
        console.print()
    for sentence in sentences(report):
        console.print(sentence)
    for row in report.refused:
        why = "for the reasons above" if row.requested == "auto" else f"since {row.requested} cannot run here"
        console.print(Text(f"Refused: {op_label(row.op)} has no backend on {report.context.place}, {why}.", "bold red"))


def _table(report: Report, everything: bool) -> Table:
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1), pad_edge=False, show_edge=False, expand=False)
    table.add_column("op", no_wrap=True)
    table.add_column("backend", no_wrap=True)
    table.add_column("why not the others", overflow="fold")
    for row in report.rows:
        table.add_row(op_label(row.op), _chosen(row), Text("\n").join(_others(row, everything)), end_section=False)
    return table


def _sites(report: Report) -> Table:
    """Where the model calls each op."""
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1), pad_edge=False, show_edge=False, expand=False)
    for title in ("site", "shape", "format", "layers", "backend"):
        table.add_column(title, overflow="fold")
    for row in report.rows:
        for each in row.sites:
            site, layers = each.site, layers_label(each.site.layers, report.num_layers)
            table.add_row(site.key, site.shape, site.dtype, layers, each.backend or Text("refused", "bold red"))
    return table


def _chosen(row: Row) -> Text:
    if row.chosen is None:
        return Text("refused", "bold red")
    return Text(row.chosen, "bold green")


def _others(row: Row, everything: bool) -> Iterator[Text]:
    if row.requested not in ("auto", row.chosen):
        yield Text(f"the profile asks for {row.requested}", "yellow")
    for other in row.others:
        for objection in other.objections if everything else other.objections[:1]:
            yield _line(other, objection)
    if spare := [other for other in row.others if other.could_run]:
        names = Text(", ").join(Text(other.name, "bold") for other in spare)
        yield names + Text(f" {spare[0].reason}", "dim")


def _line(other: OtherBackend, objection: Objection) -> Text:
    line = Text.assemble((other.name, "bold"), " ", objection.reason)
    if objection.source:
        line += Text(f" ({source_label(objection.source)})", "dim")
    return line + Text(f". {objection.remedy}" if objection.remedy else "")
