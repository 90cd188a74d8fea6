"""The installed vLLM is built for the profile's device and has what several hosts need."""

from __future__ import annotations

from collections.abc import Iterator

from appliance.preflight.subject import Subject
from appliance.protocol import Finding, Fix, Severity
from appliance.vllm.installation import read_installation
from appliance.vllm_program import PROGRAM


def run(subject: Subject) -> Iterator[Finding]:
    installation = read_installation(subject.vllm) if subject.vllm else None
    if installation is None:  # the check of the engine tells
        return
    gpu, name = subject.device.gpu, f"vLLM {installation.version}"
    if gpu is not None and installation.built_for == "cpu":
        yield _finding(
            "vllm-built-for-cpu",
            f"{name} is a CPU build, but the profile runs on {gpu.name}.",
            f"Run on the CPU, use the native engine, or set {PROGRAM} to a GPU build.",
            ("device", subject.profile.device),
            {"device": "cpu"},
        )
    elif gpu is None and installation.built_for != "cpu":
        yield _finding(
            "vllm-built-for-gpus",
            f"{name} is a GPU build, but the profile runs on the CPU ({subject.device.why}).",
            f"Use the native engine, or set {PROGRAM} to a CPU build.",
            ("device", subject.profile.device),
            {"engine": "native"},
        )
    elif gpu is not None and gpu.parent_uuid is not None and not installation.reads_uuids:
        yield _finding(
            "vllm-reads-no-uuids",
            f"{name} reads CUDA_VISIBLE_DEVICES as integers, but MIG slices only have UUIDs.",
            "Install a vLLM that accepts UUIDs (0.32 does), use the native engine, or choose a whole GPU.",
            ("device", gpu.uuid),
            {"engine": "native"},
        )
    if subject.profile.ray.address is not None and installation.ray is None:
        yield _finding(
            "ray-not-installed",
            f"The profile uses several hosts through Ray, which is not installed with {name}.",
            "Install the same version of `ray` for vLLM's Python on every host.",
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
