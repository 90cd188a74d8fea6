"""The hardware on a terminal: a table of devices, who holds their memory, the host, and what is wrong."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

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
    visible,
)
from appliance.protocol import Finding


def show(found: Inventory, environ: Mapping[str, str], console: Console | None = None) -> None:
    """`environ` may leave only some of the devices to CUDA, which is said."""
    console = console or Console(highlight=False)
    if found.replayed:
        console.print(Text(f"Replayed from {found.replayed}, not this machine.", "yellow"))
        console.print()
    if found.boards:
        console.print(_devices(found))
        console.print()
        for line in _holders(found):
            console.print(line)
        if not found.gpus:
            console.print("No device can run a model.")
    elif not found.problems:
        console.print("No GPU: models run on the processor.")
    console.print(_facts([("Driver", driver(found)), *_visible(found, environ), *_host(found.host)]))
    for problem in found.problems:
        _problem(console, problem)


def _devices(found: Inventory) -> Table:
    """Two lines a device, which fit into 80 columns: a UUID is there to be copied."""
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1), pad_edge=False, show_edge=False)
    table.add_column("GPU", no_wrap=True)
    table.add_column("name and UUID", no_wrap=True)
    table.add_column("memory in use, and state")
    for gpu, slices in found.boards:
        name = Text.assemble((short_name(gpu), "bold"), "\n", (gpu.uuid, "dim"))
        state = [memory(gpu), ", ".join(part for part in (draws(gpu), loaded(gpu)) if part)]
        table.add_row(Text.assemble(f"{gpu.index}\n", (gpu.architecture, "dim")), name, "\n".join(state))
        for part in slices:
            name = Text.assemble((f"  MIG {part.mig_profile or 'slice'}", "bold"), "\n", (f"  {part.uuid}", "dim"))
            table.add_row("", name, memory(part))
    return table


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


def _visible(found: Inventory, environ: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    if said := visible(found, environ):
        yield "Visible", said


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
