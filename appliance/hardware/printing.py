"""The hardware on a terminal: a table of devices, who holds their memory, the host, and what is wrong."""

from __future__ import annotations

from collections.abc import Iterator

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from appliance.hardware.gpu import Gpu
from appliance.hardware.host import Host
from appliance.hardware.machine import Inventory
from appliance.hardware.words import (
    confinement,
    cores,
    draws,
    driver,
    holder,
    limits,
    loaded,
    memory,
    refusals,
    room,
    short_name,
    unaccounted,
)
from appliance.protocol import Finding


def show(found: Inventory, console: Console | None = None) -> None:
    console = console or Console(highlight=False)
    if found.replayed:
        console.print(Text(f"Replayed from {found.replayed}: this is not what is here now.", "yellow"))
        console.print()
    if found.boards:
        console.print(_devices(found))
        console.print()
        for line in _holders(found):
            console.print(line)
        if not found.gpus:
            console.print("No device that a model can run on.")
    elif not found.problems:
        console.print("There is no GPU: models run on the processor.")
    console.print(_facts([("Driver", driver(found)), *_host(found.host)]))
    for problem in found.problems:
        _problem(console, problem)


def _devices(found: Inventory) -> Table:
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1), pad_edge=False, show_edge=False)
    for column in ("GPU", "name and UUID", "arch", "memory in use", "load", "power, heat"):
        table.add_column(column, no_wrap=column in ("GPU", "arch"), overflow="fold")  # a UUID is there to be copied
    for gpu, slices in found.boards:
        row = _row(str(gpu.index), gpu, whole=True)
        table.add_row(*row, style="dim" if gpu in found.divided else None)
        for part in slices:
            table.add_row(*_row("", part, whole=False))
    return table


def _row(index: str, gpu: Gpu, *, whole: bool) -> list[Text | str]:
    name = Text.assemble((short_name(gpu) if whole else f"  MIG {gpu.mig_profile or 'slice'}", "bold"))
    name.append(f"\n{'' if whole else '  '}{gpu.uuid}", "dim")
    return [
        index,
        name,
        gpu.architecture if whole else "",
        memory(gpu),
        loaded(gpu) if whole else "",
        draws(gpu) if whole else "",
    ]


def _holders(found: Inventory) -> Iterator[Text]:
    """Who holds memory, and what was refused; of each device that has something to tell."""
    told = False
    for gpu in (*found.divided, *found.gpus):
        name = f"GPU {gpu.index}" + (f", slice {gpu.mig_profile or gpu.uuid}" if gpu.parent_uuid else "")
        if gpu not in found.divided:
            for process in gpu.processes:
                told = True
                yield Text(f"{name}: {holder(process)}")
            if hidden := unaccounted(gpu, found.host):
                told = True
                yield Text(f"{name}: {hidden}")
        if not gpu.parent_uuid and (refused := refusals(gpu)):
            told = True
            yield Text(f"{name}: {refused}", "dim")
    if told:
        yield Text()


def _host(host: Host) -> Iterator[tuple[str, str]]:
    yield "Processor", cores(host)
    yield "Memory", room(host.memory_bytes, host.memory_available_bytes) + confinement(host)
    if host.shm_bytes is not None and host.shm_free_bytes is not None:
        yield "/dev/shm", room(host.shm_bytes, host.shm_free_bytes)
    for disk in host.disks:
        name = {"state": "State folder", "models": "Models folder"}.get(disk.purpose, "Disk")
        yield name, f"{room(disk.total_bytes, disk.free_bytes)}{', read-only' if disk.read_only else ''}: {disk.path}"
    yield "Limits", limits(host)
    if host.system or host.kernel:
        yield "System", ", ".join(part for part in (host.system, host.kernel and f"kernel {host.kernel}") if part)
    if host.container:
        yield "Container", host.container


def _facts(rows: list[tuple[str, str]]) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False, show_header=False)
    table.add_column(style="bold", no_wrap=True)
    table.add_column(overflow="fold")
    for name, value in rows:
        table.add_row(name, value)
    return table


def _problem(console: Console, problem: Finding) -> None:
    console.print()
    console.print(Text(problem.message, "bold yellow"))
    for line in problem.evidence:
        console.print(Text(f"  {line}", "dim"))
    if problem.fix:
        console.print(Text.assemble(("  To do: ", "green"), problem.fix.text))
        if problem.fix.command:
            console.print(Text(f"  $ {problem.fix.command}", "green"))
