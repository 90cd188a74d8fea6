"""A diagnosis for people."""

from __future__ import annotations

from rich.console import Console
from rich.text import Text

from appliance.protocol import Diagnosis


def show(diagnosis: Diagnosis, empty: bool = False, console: Console | None = None) -> None:
    """`empty`: the log held no line at all."""
    console = console or Console(highlight=False, soft_wrap=True)
    if empty:
        console.print("The log is empty.")
        return
    if diagnosis.fix is None:
        console.print(Text(diagnosis.summary, "green"))
        return
    if diagnosis.family is None:
        console.print(Text("Cause unknown", "bold yellow"))
    console.print(Text(diagnosis.summary, "bold"))
    if diagnosis.family is not None:
        console.print(Text(f"{diagnosis.family}: {diagnosis.cause}", "cyan"))
    if diagnosis.evidence:
        console.print()
    width = max((len(str(line.number)) for line in diagnosis.evidence), default=0)
    for line in diagnosis.evidence:
        console.print(Text.assemble((f"{line.number:>{width + 2}}  ", "cyan"), (line.text, "dim")))
    console.print()
    console.print(Text.assemble(("Fix: ", "green"), diagnosis.fix.text))
    for key, value in (diagnosis.fix.patch or {}).items():
        console.print(Text(f"  remove {key}" if value is None else f"  {key}: {value}", "green"))
    if diagnosis.fix.command:
        console.print(Text(f"  $ {diagnosis.fix.command}", "green"))
