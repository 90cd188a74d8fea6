"""`ingot explain`: which backend each op gets, and why not the others, on any known GPU, without one."""

from __future__ import annotations

from typing import Any

import click
import msgspec
from msgspec import structs

from appliance.checkpoint.errors import CheckpointError
from appliance.explain.report import Report, report
from appliance.hardware.device import DeviceError
from appliance.hardware.engine_machine import this_machine
from appliance.hardware.known import KNOWN_GPUS, KnownGpu, UnknownGpuError, known_gpu
from appliance.home import Home
from appliance.profile import document
from appliance.profile.chosen import NoSuchProfileError, chosen_document
from appliance.profile.schema import ProfileError
from kernels.libraries import DISTRIBUTIONS


@click.command()
@click.option(
    "--profile",
    "source",
    metavar="PROFILE",
    help="A profile file, or the name of the active profile. [default: the active profile]",
)
@click.option("--gpu", metavar="GPU", help='Answer for this GPU, such as "RTX PRO 6000". [default: this machine]')
@click.option(
    "--with", "extra", metavar="LIBRARY=VERSION", multiple=True,
    help="Assume this library is installed, such as flashinfer=0.6.13.",
)  # fmt: skip
@click.option("--all", "everything", is_flag=True, help="Show every objection to a backend, not only the first.")
@click.option("--gpus", "list_gpus", is_flag=True, help="List the GPUs --gpu knows and exit.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object, for programs.")
def explain(
    source: str | None, gpu: str | None, extra: tuple[str, ...], everything: bool, list_gpus: bool, as_json: bool
) -> None:
    """Show which backend computes each op of a model, and why not the others.

    Exits with 1 when an op is refused.
    """
    if list_gpus:
        for known in KNOWN_GPUS:
            click.echo(f"{known.name:<28} {known.architecture:<7} {known.memory_gib:>4} GiB")
        return
    home = Home.from_environment()
    try:
        profile = document.load(chosen_document(source, home))
        machine = this_machine(home=home)
        machine = structs.replace(machine, libraries=machine.libraries | _libraries(extra))
        found = report(profile, home, machine=machine, gpu=_gpu(gpu) if gpu is not None else None)
    except (NoSuchProfileError, ProfileError) as error:
        raise click.UsageError(str(error)) from error
    except CheckpointError as error:
        raise click.ClickException(f"{error.message} {error.fix.text}") from error
    except DeviceError as error:
        raise click.ClickException(f"{error} Name another device in the profile, or a GPU with --gpu.") from error
    if as_json:
        click.echo(msgspec.json.format(msgspec.json.encode(_as_data(found))).decode())
    else:
        from appliance.explain.printing import show  # rich takes longer to import than the rest to run

        show(found, everything=everything)
    if found.refused:
        raise SystemExit(1)


def _gpu(name: str) -> KnownGpu:
    try:
        return known_gpu(name)
    except UnknownGpuError as error:
        known = ", ".join(error.nearest)
        raise click.UsageError(f"{error} Known: {known}. `ingot explain --gpus` lists all.") from error


def _libraries(given: tuple[str, ...]) -> dict[str, str]:
    found = {}
    for entry in given:
        name, _, version = entry.partition("=")
        if name not in DISTRIBUTIONS or not version[:1].isdigit():
            known = ", ".join(DISTRIBUTIONS)
            raise click.UsageError(f"--with {entry}: write LIBRARY=VERSION, where LIBRARY is one of {known}.")
        found[name] = version
    return found


def _as_data(found: Report) -> dict[str, Any]:
    gpu = found.device.gpu
    return {
        "profile": found.profile,
        "architecture": found.architecture,
        "engine": found.context.engine,
        "device": {
            "name": gpu.name if gpu else "cpu",
            "architecture": found.context.place if gpu else None,
            "memory-bytes": gpu.memory_bytes if gpu else None,
            "hypothetical": found.hypothetical,
        },
        "dtype": found.context.dtype,
        "kv-cache-dtype": found.context.cache_dtype,
        "libraries": found.context.libraries,
        "ops": [
            {
                "op": row.op,
                "setting": f"backends.{row.setting}" if row.setting else None,
                "requested": row.requested,
                "chosen": row.chosen,
                "kernels": row.kernels,
                "sites": [
                    {
                        "site": each.site.key,
                        "shape": each.site.shape,
                        "dtype": each.site.dtype,
                        "layers": each.site.layers,
                        "requested": each.requested,
                        "chosen": each.backend,
                        "why": each.why or None,
                    }
                    for each in row.sites
                ],
                "refusal": row.refusal or None,
                "vllm": None if row.arguments is None else {"arguments": row.arguments, "environment": row.environment},
                "others": [
                    {
                        "backend": other.name,
                        "could-run": other.could_run,
                        "reason": other.reason,
                        "source": other.source,
                        "remedy": other.remedy or None,
                        "objections": [{"reason": o.reason, "source": o.source} for o in other.objections],
                    }
                    for other in row.others
                ],
            }
            for row in found.rows
        ],
        "cast": {"kernels": found.kernels, "possible": found.can_be_cast},
        "memory": found.memory,
    }
