"""Other programs leave enough GPU memory free; vLLM refuses to start when its share is taken."""

from __future__ import annotations

import math
from collections.abc import Iterator

from appliance.hardware.gpu import Gpu
from appliance.preflight.subject import Subject
from appliance.profile.sizes import size_text
from appliance.protocol import Finding, Fix, Severity

# What a context and the engine's own start take before vLLM looks, which NVML cannot report beforehand.
OWN_START = 512 << 20
# A share below this is not worth offering: hardly any model would fit.
LEAST_SHARE = 0.1


def run(subject: Subject) -> Iterator[Finding]:
    gpu, profile = _fullest(subject), subject.profile
    if gpu is None or not gpu.memory_bytes:
        return
    wanted = int(gpu.memory_bytes * profile.gpu_memory_utilization)
    if gpu.memory_free_bytes >= wanted:
        return
    held = gpu.memory_bytes - gpu.memory_free_bytes
    who, verb = _holders(gpu), "are" if len(gpu.processes) > 1 else "is"
    refuses = subject.traits.needs_its_share and profile.kv_cache_memory_bytes is None
    share = math.floor((gpu.memory_free_bytes - OWN_START) / gpu.memory_bytes * 100) / 100
    text = f"End {who or 'what holds it'}" if who else "End the programs using it (`nvidia-smi` lists them)"
    consequence = "vLLM refuses to start with less than its share" if refuses else "the KV cache gets smaller"
    fits = LEAST_SHARE <= share < profile.gpu_memory_utilization
    yield Finding(
        id="memory-held",
        severity=Severity.ERROR if refuses else Severity.WARNING,
        message=f"{who or 'Another program'} {verb} using {size_text(held)} of {gpu.name}. The profile needs "
        f"{size_text(wanted)}; "
        f"{size_text(gpu.memory_free_bytes)} is free, so {consequence}.",
        field="gpu-memory-utilization",
        value=profile.gpu_memory_utilization,
        evidence=tuple(_lines(gpu)),
        fix=Fix(
            text=f"{text}, or use {share:.0%} of the GPU." if fits else f"{text}.",
            patch={"gpu-memory-utilization": share} if fits else None,
            command=None if fits else "nvidia-smi",
        ),
        transient=True,
    )


def _fullest(subject: Subject) -> Gpu | None:
    """The GPU, of those that the launch takes, with the least left of its memory."""
    own = _of_the_running(subject)
    gpus = [gpu for gpu in subject.gpus if gpu.memory_kind == "dedicated" and gpu.uuid not in own]
    return min(gpus, key=lambda gpu: gpu.memory_free_bytes / max(gpu.memory_bytes, 1), default=None)


def _of_the_running(subject: Subject) -> set[str]:
    """The GPUs of the launch that ends first: what it holds beside its weights and cache is unknown, so
    nothing is refused because of it."""
    running = subject.context.running
    if running is None:
        return set()
    return {gpu.uuid for gpu in (running.device.gpu, *running.taken) if gpu is not None}


def _lines(gpu: Gpu) -> Iterator[str]:
    for process in gpu.processes[:8]:
        memory = "" if process.memory_bytes is None else f": {size_text(process.memory_bytes)}"
        yield f"process {process.pid} ({process.name or 'of another container'}){memory}"
    if not gpu.processes:
        yield "the driver names no process: it may belong to another container or user, a desktop, or a crashed program"


def _holders(gpu: Gpu) -> str:
    names = [str(process) for process in gpu.processes[:3]]
    more = len(gpu.processes) - len(names)
    return ", ".join(names) + (f" and {more} more" if more > 0 else "")
