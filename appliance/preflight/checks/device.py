"""The device that the profile names is there."""

from __future__ import annotations

from collections.abc import Iterator

from appliance.hardware import Gpu
from appliance.hardware.device import DeviceError
from appliance.hardware.problems import DRIVER_TOO_OLD
from appliance.hardware.replay import INGOT_HARDWARE
from appliance.preflight.subject import Subject
from appliance.protocol import Finding, Fix, Severity


def run(subject: Subject) -> Iterator[Finding]:
    profile, inventory = subject.profile, subject.context.inventory
    if inventory.replayed:
        yield Finding(
            id="hardware-replayed",
            severity=Severity.INFO,
            message="All this is judged by a recording of hardware, not by the machine that is here.",
            field=INGOT_HARDWARE,
            value=inventory.replayed,
            fix=Fix(text="To start an engine, do without it.", command=f"unset {INGOT_HARDWARE}"),
        )
    try:
        device = subject.device
    except DeviceError as error:
        yield Finding(
            id="device-missing",
            severity=Severity.ERROR,
            message=str(error),
            field="device",
            value=profile.device,
            evidence=tuple(f"here: {choice}" for choice in error.choices),
            fix=Fix(text="Let Ingot choose the device.", patch={"device": "auto"}),
        )
        return
    if profile.device == "cpu":
        return
    if device.gpu is not None:
        yield from _compute_mode(device.gpu)
    # How old the driver may be, the check of the driver tells, which knows for which CUDA the engine is built.
    yield from (problem for problem in inventory.problems if problem.id != DRIVER_TOO_OLD)
    if inventory.problem and not inventory.problems and profile.device == "auto" and device.gpu is None:
        yield Finding(
            id="gpu-unusable",
            severity=Severity.WARNING,
            message=f"{inventory.problem} The model runs on the CPU.",
            field="device",
            value=profile.device,
            fix=Fix(text="Repair the driver; `nvidia-smi` says more.", command="nvidia-smi"),
        )


def _compute_mode(gpu: Gpu) -> Iterator[Finding]:
    """CUDA then says that all devices are busy or unavailable, after everything else has been started."""
    others = ", ".join(map(str, gpu.processes))
    if gpu.compute_mode == "prohibited":
        why = "lets no process compute (compute mode Prohibited)"
    elif gpu.compute_mode == "exclusive" and others:
        why = f"lets one process compute (compute mode Exclusive), and that is {others}"
    else:
        return
    yield Finding(
        id="gpu-not-shared",
        severity=Severity.ERROR,
        message=f"{gpu} {why}.",
        field="device",
        value=gpu.uuid,
        fix=Fix(
            text="Set its compute mode back to Default; or end the process that has it.",
            command=f"sudo nvidia-smi -i {gpu.parent_uuid or gpu.uuid} -c DEFAULT",
        ),
    )
