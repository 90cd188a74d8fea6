"""The device named in the profile exists."""

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
            message="These checks used recorded hardware, not this machine.",
            field=INGOT_HARDWARE,
            value=inventory.replayed,
            fix=Fix(text="Unset it before starting an engine.", command=f"unset {INGOT_HARDWARE}"),
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
            fix=Fix(text="Repair the driver. `nvidia-smi` shows more.", look="nvidia-smi"),
        )


def _compute_mode(gpu: Gpu) -> Iterator[Finding]:
    """CUDA would report all devices busy or unavailable, but only after everything else has started."""
    others = ", ".join(map(str, gpu.processes))
    if gpu.compute_mode == "prohibited":
        why = "accepts no compute processes (compute mode Prohibited)"
    elif gpu.compute_mode == "exclusive" and others:
        why = f"accepts one compute process (compute mode Exclusive), and {others} is using it"
    else:
        return
    yield Finding(
        id="gpu-not-shared",
        severity=Severity.ERROR,
        message=f"{gpu} {why}.",
        field="device",
        value=gpu.uuid,
        fix=Fix(
            text="Set the compute mode to Default, or end the process using it.",
            command=f"sudo nvidia-smi -i {gpu.parent_uuid or gpu.uuid} -c DEFAULT",
        ),
    )
