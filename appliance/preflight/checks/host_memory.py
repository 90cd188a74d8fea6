"""The kernel's overcommit and mapping limits let an engine reserve memory and map its weights."""

from __future__ import annotations

import re
from collections.abc import Iterator

from appliance.preflight.subject import Subject
from appliance.profile.sizes import size_text
from appliance.protocol import Finding, Fix, Severity

NEVER = 2  # vm.overcommit_memory: nothing beyond what exists is promised
# What CUDA asks for without using it, before a model is read.
CUDA_RESERVES = 32 << 30
# Mappings that an engine has besides one for each file of the weights and each segment of the allocator.
OWN_MAPPINGS = 8192
_KIB = re.compile(r"^(CommitLimit|Committed_AS):\s+(\d{1,18}) kB", re.MULTILINE)


def run(subject: Subject) -> Iterator[Finding]:
    if subject.here.number("/proc/sys/vm/overcommit_memory") == NEVER:
        yield from _committed(subject)
    mappings = subject.here.number("/proc/sys/vm/max_map_count")
    files = _weight_files(subject)
    if mappings is not None and mappings < OWN_MAPPINGS + 16 * files:
        yield Finding(
            id="mappings-few",
            severity=Severity.WARNING,
            message=f"The limit of memory mappings per process is {mappings:,}; torch and {files:,} weight files need "
            f'{OWN_MAPPINGS + 16 * files:,}. Loading would fail with "Cannot allocate memory" although some is free.',
            field="vm.max_map_count",
            value=mappings,
            fix=Fix(text="Raise it on the host.", command="sysctl -w vm.max_map_count=262144"),
        )


def _committed(subject: Subject) -> Iterator[Finding]:
    figures = {name: int(value) << 10 for name, value in _KIB.findall(subject.here.text("/proc/meminfo") or "")}
    if len(figures) < 2:
        return
    left = max(figures["CommitLimit"] - figures["Committed_AS"], 0)
    wanted = CUDA_RESERVES if subject.device.gpu is not None else 0
    if subject.readable and not subject.traits.measures_memory:
        wanted += subject.effective.memory.needed_bytes if subject.device.gpu is None else 0
    if left >= max(wanted, 1 << 30):
        return
    yield Finding(
        id="overcommit-forbidden",
        severity=Severity.WARNING,
        message=f"Memory overcommit is off (vm.overcommit_memory is {NEVER}). "
        f"{size_text(left)} can still be reserved; the engine reserves {size_text(max(wanted, 1 << 30))}.",
        field="vm.overcommit_memory",
        value=NEVER,
        fix=Fix(text="Allow overcommit on the host. Engines reserve much more than they use.",
                command="sysctl -w vm.overcommit_memory=0"),
    )  # fmt: skip


def _weight_files(subject: Subject) -> int:
    try:
        return sum(1 for _ in subject.folder.glob("*.safetensors"))
    except OSError:
        return 0
