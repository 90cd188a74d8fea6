"""/dev/shm is large enough for workers that exchange tensors; containers get 64 MiB by default."""

from __future__ import annotations

from collections.abc import Iterator

from appliance.plan.effective import workers
from appliance.preflight.subject import Subject
from appliance.profile.sizes import size_text
from appliance.protocol import Finding, Fix, Severity

MIB = 1 << 20
# What Docker gives by default does not hold NCCL's buffers of two GPUs.
TOO_SMALL = 64 * MIB
# NCCL's channels and vLLM's queues of one worker (its ring of ten 24 MiB chunks is shared by all).
BASE, PER_WORKER = 256 * MIB, 128 * MIB
# On a CPU vLLM 0.32 has a worker process even for one: it ends its start with less than this.
ON_CPU = 160 * MIB
NCCL = "https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/troubleshooting.html#shared-memory"


def run(subject: Subject) -> Iterator[Finding]:
    host, count = subject.context.inventory.host, workers(subject.profile)
    on_cpu, helped = subject.profile.device == "cpu" or not subject.inventory.gpus, subject.traits.several_processes
    if host.shm_bytes is None or (on_cpu and not helped):
        return
    alone_on_cpu = count < 2 and on_cpu
    if count < 2 and not alone_on_cpu:
        return
    free = host.shm_bytes if host.shm_free_bytes is None else host.shm_free_bytes
    wanted = ON_CPU if alone_on_cpu else BASE + count * PER_WORKER
    who = "vLLM's processes" if alone_on_cpu else f"{count} workers"
    if free >= wanted:
        return
    held = host.shm_bytes - free
    left_over = held > host.shm_bytes // 2 and host.shm_bytes >= wanted
    yield Finding(
        id="shared-memory-small",
        severity=Severity.ERROR if alone_on_cpu or free <= TOO_SMALL else Severity.WARNING,
        message=f"/dev/shm has {size_text(free)} free of {size_text(host.shm_bytes)}. {who} "
        f"exchange tensors through it and need {size_text(wanted)}.",
        field="/dev/shm",
        value=host.shm_bytes,
        evidence=(NCCL,),
        fix=_left_over() if left_over else _larger(host.container is not None),
        transient=host.shm_bytes >= wanted,
    )


def _left_over() -> Fix:
    return Fix(
        text="Remove what killed engines left there, while no engine is running.",
        command="rm -f /dev/shm/nccl-* /dev/shm/psm_* /dev/shm/sem.mp-*",
    )


def _larger(in_container: bool) -> Fix:
    if in_container:
        return Fix(
            text="Give the container more: `shm_size: 8gb` in compose.yaml, or `--shm-size=8g` (or `--ipc=host`).",
            command="docker compose up --force-recreate engine",
        )
    return Fix(text="Make it larger.", command="mount -o remount,size=8G /dev/shm")
