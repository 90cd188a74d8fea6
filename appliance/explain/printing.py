"""A report for people: one table that reads well from 80 columns on, then what a cast would have to hold."""

from __future__ import annotations

from collections.abc import Iterator

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from appliance.explain.report import OtherBackend, Report, Row, source_label
from appliance.profile.sizes import size_text
from kernels.backend import Objection
from kernels.cast.architectures import ARCHITECTURES


def show(report: Report, *, everything: bool = False, console: Console | None = None) -> None:
    """`everything` lists all that stands against a backend, not only what decides."""
    console = console or Console(highlight=False)
    console.print(Text(report.profile, "bold") + Text(f": {about(report)}."))
    console.print()
    console.print(_table(report, everything))
    for sentence in (_memory(report), _libraries(report), cast_needs(report), _vllm(report)):
        if sentence:
            console.print(sentence)
    for row in report.refused:
        why = "for the reasons above" if row.requested == "auto" else f"as {row.requested} cannot run here"
        console.print(Text(f"Refused: {row.op} has no backend on {report.context.place}, {why}.", "bold red"))


def about(report: Report) -> str:
    """What was judged: the model, its format, the device, the engine."""
    gpu = report.device.gpu
    where = "on the CPU" if gpu is None else f"on {gpu.name} ({report.context.place}, {size_text(gpu.memory_bytes)})"
    engine = "the native engine" if report.context.engine == "native" else "vLLM"
    cache = f", cache in {report.context.cache_dtype}" if report.context.cache_dtype != report.context.dtype else ""
    return f"{report.architecture} in {report.context.dtype}{cache} {where}, by {engine}"


def cast_needs(report: Report) -> str:
    """What a cast for this model and device has to hold."""
    if report.device.gpu is None or report.context.engine != "native":
        return ""
    if not report.can_be_cast:
        known = ", ".join(ARCHITECTURES)
        return f"Kernels cannot be cast for {report.context.place} (only for {known}): they are compiled as they run."
    if not report.kernels:
        return "It needs nothing of a cast: no chosen backend compiles kernels."
    return f"A cast for {report.context.place} has to hold {report.kernels} kernels for it."


def _memory(report: Report) -> str:
    plan = report.memory
    if plan is None:
        return ""
    if plan.fits:
        return (
            f"Memory: {size_text(plan.weight_bytes)} of weights; the cache holds "
            f"{plan.num_blocks * plan.block_size} tokens."
        )
    needed, there = size_text(plan.needed_bytes), size_text(plan.available_bytes)
    return f"Memory: it does not fit; it needs {needed}, and {there} are available."


def _libraries(report: Report) -> str:
    if report.device.gpu is None:
        return ""
    found = ", ".join(f"{name} {version}" for name, version in sorted(report.context.libraries.items()))
    return f"Libraries: {found or 'none of those that backends need'}."


def _vllm(report: Report) -> str:
    """What chooses these backends in vLLM."""
    flags = [f"--{name} {value}" for row in report.rows for name, value in (row.arguments or {}).items()]
    variables = [f"{name}={value}" for row in report.rows for name, value in (row.environment or {}).items()]
    return f"vLLM is told so by {' '.join(flags + variables)}." if flags or variables else ""


def _table(report: Report, everything: bool) -> Table:
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1), pad_edge=False, show_edge=False, expand=False)
    table.add_column("op", no_wrap=True)
    table.add_column("backend", no_wrap=True)
    table.add_column("why not the others", overflow="fold")
    for row in report.rows:
        table.add_row(row.op, _chosen(row), Text("\n").join(_others(row, everything)), end_section=False)
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
