"""A diagnosis for people."""

from __future__ import annotations

from rich.console import Console
from rich.text import Text

from appliance.protocol import Diagnosis, Outcome

COLOURS = {Outcome.SERVES: "bold green", Outcome.NOT_READY: "bold yellow", Outcome.UNCLEAR: "bold yellow"}


def show(diagnosis: Diagnosis, console: Console | None = None) -> None:
    console = console or Console(highlight=False, soft_wrap=True)
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
    if diagnosis.fix is None:
        return
    console.print()
    console.print(Text.assemble(("Fix: ", "green"), diagnosis.fix.text))
    for key, value in (diagnosis.fix.patch or {}).items():
        console.print(Text(f"  remove {key}" if value is None else f"  {key}: {value}", "green"))
    if diagnosis.fix.command:
        console.print(Text(f"  $ {diagnosis.fix.command}", "green"))
