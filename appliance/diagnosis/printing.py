"""A diagnosis for people."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console
from rich.text import Text

from appliance.launches.process_ends import how
from appliance.protocol import Diagnosis, Fix, Outcome, ProcessEnd

COLOURS = {Outcome.SERVES: "bold green", Outcome.NOT_READY: "bold yellow", Outcome.UNCLEAR: "bold yellow"}


def show(diagnosis: Diagnosis, console: Console | None = None) -> None:
    console = console or _console()
    if diagnosis.outcome is Outcome.FAILED and diagnosis.family is None:
        console.print(Text("Cause unknown", "bold yellow"))
    console.print(Text(diagnosis.summary, COLOURS.get(diagnosis.outcome, "bold")))
    if diagnosis.family is not None:
        console.print(Text(f"{diagnosis.family}: {diagnosis.cause}", "cyan"))
    if diagnosis.evidence:
        console.print()
    width = max((len(str(line.number)) for line in diagnosis.evidence), default=0)
    for line in diagnosis.evidence:
        console.print(Text.assemble((f"{line.number:>{width + 2}}  ", "cyan"), (line.text, "dim")))
    if diagnosis.fix is not None:
        console.print()
        _show_fix(diagnosis.fix, console)


def _show_fix(fix: Fix, console: Console) -> None:
    console.print(Text.assemble(("Fix: ", "green"), fix.text))
    for key, value in (fix.patch or {}).items():
        console.print(Text(f"  remove {key}" if value is None else f"  {key}: {value}", "green"))
    for message in fix.blocked:
        console.print(Text(f"  Preflight refuses it: {message}", "yellow"))
    if fix.command:
        console.print(Text(f"  $ {fix.command}", "green"))
    if fix.look:
        console.print(Text.assemble(("To see more: ", "dim"), f"$ {fix.look}"))


def show_ends(ends: Sequence[ProcessEnd]) -> None:
    """How a launch's processes ended, first to last."""
    if not ends:
        return
    console = _console()
    console.print(Text("\nProcesses, in the order in which they ended:"))
    for end in ends:
        later = " (afterwards)" if end.aftermath and not end.by_ingot else ""
        console.print(Text(f"  {end.name} ({end.pid}): {how(end)}{later}", "dim" if end.aftermath else ""))


def _console() -> Console:
    return Console(highlight=False, soft_wrap=True)
