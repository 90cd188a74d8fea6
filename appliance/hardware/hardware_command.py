"""`ingot hardware`: what this machine has for models to run on, or what a recorded one had."""

from __future__ import annotations

import os
from functools import partial
from pathlib import Path

import click
import msgspec

from appliance.hardware.host import read_host
from appliance.hardware.machine import inventory, replayed
from appliance.hardware.nvml import NvmlUnavailable, load_nvml
from appliance.hardware.patience import Patience
from appliance.hardware.problems import read_signs
from appliance.hardware.record import record
from appliance.hardware.replay import Recording, RecordingError
from appliance.home import write_atomically
from appliance.running_appliance import find_the_appliance


@click.command()
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object, for programs.")
@click.option("--replay", "recording", metavar="FILE", help="Show the machine recorded in FILE instead of this one.")
@click.option(
    "--record", "target", metavar="FILE", help="Record this machine in FILE, for --replay elsewhere, and exit."
)
def hardware(as_json: bool, recording: str | None, target: str | None) -> None:
    """Show GPUs, MIG slices, driver, memory, disks and limits of this machine.

    Exits with 1 when something is wrong with its GPUs.
    """
    if recording is None:  # a recorded machine's disks are in the recording
        find_the_appliance()
    if target is not None:
        _record(Path(target))
        return
    try:
        found = replayed(Path(recording)) if recording is not None else inventory()
    except RecordingError as error:
        raise click.UsageError(str(error)) from error
    if as_json:
        click.echo(msgspec.json.format(msgspec.json.encode(found)).decode())
    else:
        from appliance.hardware.printing import show  # rich takes longer to import than the rest to run

        show(found, os.environ)
    if found.problems:
        raise SystemExit(1)


def _record(target: Path) -> None:
    host = read_host()
    signs = read_signs(os.environ, host.container)
    try:
        nvml = load_nvml()
        ask = partial(record, nvml, host, about="", pci=signs.pci, kernel_driver=signs.kernel_driver)
        made = Patience[Recording]().call(ask)
        write_atomically(target, msgspec.json.format(msgspec.json.encode(made)) + b"\n", 0o644)
    except (NvmlUnavailable, OSError) as error:
        raise click.ClickException(f"{target} was not written: {error}") from error
    click.echo(f"Recorded this machine in {target}. `ingot hardware --replay {target}` shows it.")
