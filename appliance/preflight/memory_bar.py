"""The memory plan in a terminal: a bar, its parts with their sizes, and what fits."""

from __future__ import annotations

from typing import Final

from rich.console import Console
from rich.text import Text

from appliance.checkpoint.memory import MemoryPlan
from appliance.profile.sizes import size_text

WIDTH: Final = 60
# A letter each, so that the bar can be read without colours.
LOOKS: Final = {
    "weights": ("W", "blue"),
    "cache": ("C", "green"),
    "states": ("s", "cyan"),
    "workspace": ("w", "yellow"),
    "graphs": ("g", "magenta"),
    "held": ("x", "dim"),
    "reserve": ("-", "dim"),
    "free": (".", "dim"),
}


def show_memory(console: Console, plan: MemoryPlan, device: str) -> None:
    console.print(
        f"Memory of {device}, {size_text(plan.total_bytes)}: the engine uses {size_text(plan.needed_bytes)} of the "
        f"{size_text(plan.available_bytes)} available to it."
    )
    console.print(Text("  [") + _bar(plan) + "]")
    for part in plan.segments:
        letter, style = LOOKS[part.key]
        console.print(Text.assemble("  ", (letter, style), f" {part.label:<15} {size_text(part.bytes):>10}"))
    for holder in plan.holders:
        held = "" if holder.bytes is None else f", {size_text(holder.bytes)}"
        console.print(Text(f"      {holder.name}{held}", "dim"))
    longer = ""
    if plan.longest_context > plan.max_model_len:
        longer = f" The longest context that fits is {plan.longest_context:,} tokens."
    estimate = " This is an estimate: vLLM measures its needs when it starts." if plan.estimated else ""
    console.print(f"It fits {plan.fitting}.{longer}{estimate}")


def _bar(plan: MemoryPlan) -> Text:
    """Each part at least one letter wide; what is free gives way."""
    total = max(sum(part.bytes for part in plan.segments), 1)
    bar = Text()
    for part in plan.segments:
        letter, style = LOOKS[part.key]
        bar.append(letter * max(round(part.bytes / total * WIDTH), 1), style)
    bar.truncate(WIDTH)
    return bar
