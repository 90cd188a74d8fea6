"""Other programs leave enough of the GPU's memory: vLLM refuses to start where its share is not free."""

from __future__ import annotations

import math
from collections.abc import Iterator

from appliance.hardware.gpu import Gpu
from appliance.preflight.subject import Subject
from appliance.profile.sizes import size_text
from appliance.protocol import Finding, Fix, Severity
from appliance.vllm.plan import VllmPlan

# What a context and the engine's own start take before vLLM looks, of which NVML does not tell beforehand.
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
    who = _holders(gpu)
    refuses = subject.engine == "vllm" and profile.kv_cache_memory_bytes is None
    share = math.floor((gpu.memory_free_bytes - OWN_START) / gpu.memory_bytes * 100) / 100
    text = f"End {who or 'what holds it'}" if who else "End the programs that hold it; `nvidia-smi` lists them"
    consequence = "vLLM does not start with less than its share" if refuses else "the cache is made smaller"
    fits = LEAST_SHARE <= share < profile.gpu_memory_utilization
    yield Finding(
        id="memory-held",
        severity=Severity.ERROR if refuses else Severity.WARNING,
        message=f"{size_text(held)} of {gpu.name} are held by {who or 'other programs'}; {size_text(wanted)} are to be "
        f"used, and {size_text(gpu.memory_free_bytes)} are free: {consequence}.",
        field="gpu-memory-utilization",
        value=profile.gpu_memory_utilization,
        evidence=tuple(_lines(gpu)),
        fix=Fix(
            text=f"{text}; or use {share:g} of the GPU." if fits else f"{text}.",
            patch={"gpu-memory-utilization": share} if fits else None,
            command=None if fits else "nvidia-smi",
        ),
    )


def _fullest(subject: Subject) -> Gpu | None:
    """The GPU, of those that the launch takes, with the least left of its memory."""
    own = _of_the_running(subject)
    gpus = [gpu for gpu in subject.gpus if gpu.memory_kind == "dedicated" and gpu.uuid not in own]
    return min(gpus, key=lambda gpu: gpu.memory_free_bytes / max(gpu.memory_bytes, 1), default=None)


def _of_the_running(subject: Subject) -> set[str]:
    """The GPUs of the launch that ends first: what it holds there beside its weights and cache is not known, and nobody
    is refused for it."""
    running = subject.context.running
    if running is None:
        return set()
    gpus = (running.device.gpu, *(running.gpus if isinstance(running, VllmPlan) else ()))
    return {gpu.uuid for gpu in gpus if gpu is not None}


def _lines(gpu: Gpu) -> Iterator[str]:
    for process in gpu.processes[:8]:
        memory = "" if process.memory_bytes is None else f": {size_text(process.memory_bytes)}"
        yield f"process {process.pid} ({process.name or 'of another container'}){memory}"
    if not gpu.processes:
        yield "the driver names no process: another container or user, a desktop, or one that died and left a context"


def _holders(gpu: Gpu) -> str:
    names = [str(process) for process in gpu.processes[:3]]
    more = len(gpu.processes) - len(names)
    return ", ".join(names) + (f" and {more} more" if more > 0 else "")
