"""The NVIDIA driver supports the CUDA version torch was built for, and torch was built with CUDA."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from appliance.hardware.gpu import Gpu
from appliance.hardware.problems import COMPATIBILITY, DRIVER_TOO_OLD, OLDEST_DRIVER
from appliance.packages import Version, release
from appliance.preflight.subject import Subject
from appliance.protocol import Finding, Fix, Severity

# Forward compatibility is for data-centre GPUs only; on these it certainly is not.
_WITHOUT_FORWARD = re.compile(r"geforce|titan", re.IGNORECASE)


def run(subject: Subject) -> Iterator[Finding]:
    gpu, inventory = subject.device.gpu, subject.context.inventory
    torch = None if subject.context.surroundings is None or inventory.replayed else subject.packages.torch
    if torch is None or not torch.told:  # a driver too old for any torch is known all the same
        yield from (problem for problem in inventory.problems if problem.id == DRIVER_TOO_OLD and gpu is not None)
        return
    if torch.cuda is None and gpu is not None and not subject.traits.own_python:
        yield _without_cuda(subject, gpu, torch.version)
    if torch.cuda is None or gpu is None:  # vLLM's builds have a check of their own
        return
    supported = release(inventory.cuda_version or "")
    if not supported or supported[0] >= torch.cuda[0]:  # newer minor versions run on the same major one's driver
        return
    if (compat := _forward_compatible(subject)) is None or _WITHOUT_FORWARD.search(gpu.name):
        yield _too_old(subject, gpu, torch.cuda, supported, compat)


def _too_old(subject: Subject, gpu: Gpu, wanted: Version, supported: Version, compat: Path | None) -> Finding:
    inventory, words = subject.context.inventory, ".".join(map(str, wanted))
    least = OLDEST_DRIVER.get(wanted[0], "for it")
    evidence = [f"torch {subject.packages.torch.version if subject.packages.torch else ''}", COMPATIBILITY]
    if compat is not None:
        evidence.append(f"{compat} does not help: forward compatibility is limited to data-centre GPUs")
    return Finding(
        id=DRIVER_TOO_OLD,
        severity=Severity.ERROR,
        message=f"The driver {inventory.driver_version or ''} on {gpu.name} supports CUDA up to "
        f"{'.'.join(map(str, supported))}. The engine is built for CUDA {words}.",
        field="driver",
        value=inventory.driver_version,
        evidence=tuple(evidence),
        fix=Fix(
            text=f"Install driver {least} or newer on the host (not in the container), or use the Ingot image "
            f"built for CUDA {supported[0]}.",
            command="nvidia-smi",
        ),
    )


def _without_cuda(subject: Subject, gpu: Gpu, version: str) -> Finding:
    return Finding(
        id="torch-without-cuda",
        severity=Severity.ERROR,
        message=f"The profile runs on {gpu.name}, but torch {version} is built without CUDA.",
        field="device",
        value=subject.profile.device,
        evidence=(f"torch {version}",),
        fix=Fix(
            text="Install a torch built for CUDA, or use the image for this GPU. Until then, run on the CPU.",
            patch={"device": "cpu"},
        ),
    )


def _forward_compatible(subject: Subject) -> Path | None:
    """The folder of NVIDIA's package for newer CUDA on an older driver, if it is in use."""
    for folder in subject.context.environ.get("LD_LIBRARY_PATH", "").split(":"):
        if "compat" in folder and any(_libcuda(subject, folder)):
            return Path(folder)
    configured = subject.here.text("/etc/ld.so.conf.d/00-compat.conf") or ""
    lines = [*configured.splitlines(), "/usr/local/cuda/compat/lib"]  # where container images link it when it is used
    return next((Path(line) for line in lines if line.startswith("/") and any(_libcuda(subject, line))), None)


def _libcuda(subject: Subject, folder: str) -> list[Path]:
    try:
        return list(subject.here.at(folder).glob("libcuda.so*"))
    except (OSError, ValueError):
        return []
