"""The installed vLLM was built for the device that the profile means, and has what several hosts need."""

from __future__ import annotations

from collections.abc import Iterator

from appliance.preflight.subject import Subject
from appliance.protocol import Finding, Fix, Severity
from appliance.vllm.installation import read_installation
from appliance.vllm.program import PROGRAM


def run(subject: Subject) -> Iterator[Finding]:
    installation = read_installation(subject.vllm) if subject.vllm else None
    if installation is None:  # the check of the engine tells
        return
    gpu, name = subject.device.gpu, f"vLLM {installation.version}"
    if gpu is not None and installation.built_for == "cpu":
        yield _finding(
            "vllm-built-for-cpu",
            f"{name} is a build for CPUs, and the profile runs on {gpu.name}.",
            f"Run it on the CPU, use the native engine, or name a build for GPUs with {PROGRAM}.",
            ("device", subject.profile.device),
            {"device": "cpu"},
        )
    elif gpu is None and installation.built_for != "cpu":
        yield _finding(
            "vllm-built-for-gpus",
            f"{name} is a build for GPUs, and the profile runs on the CPU ({subject.device.why}).",
            f"Use the native engine, or name a build for CPUs with {PROGRAM}.",
            ("device", subject.profile.device),
            {"engine": "native"},
        )
    elif gpu is not None and gpu.parent_uuid is not None and not installation.reads_uuids:
        yield _finding(
            "vllm-reads-no-uuids",
            f"{name} reads CUDA_VISIBLE_DEVICES as integers, and a MIG slice has a UUID only.",
            "Install a vLLM that reads UUIDs (0.32 does), use the native engine, or choose a whole GPU.",
            ("device", gpu.uuid),
            {"engine": "native"},
        )
    if subject.profile.ray.address is not None and installation.ray is None:
        yield _finding(
            "ray-not-installed",
            f"The profile spreads the model over hosts with Ray, which is not installed beside {name}.",
            "Install `ray` into vLLM's Python on every host, in one version.",
            ("ray.address", subject.profile.ray.address),
            None,
        )


def _finding(
    id: str, message: str, remedy: str, where: tuple[str, str], patch: dict[str, str | None] | None
) -> Finding:
    field, value = where
    return Finding(
        id=id,
        severity=Severity.ERROR,
        message=message,
        field=field,
        value=value,
        fix=Fix(text=remedy, patch=patch),
    )
