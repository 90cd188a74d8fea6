"""The processor's name and what it can compute, from the first block of /proc/cpuinfo: the rest repeats it for every
core, and the kernel takes long to write it on a large machine."""

from __future__ import annotations

from pathlib import Path
from typing import Final, NamedTuple

CPUINFO = Path("/proc/cpuinfo")
# As the kernel calls the instructions: x86's two kinds, and ARM's.
_BFLOAT16_FLAGS: Final = {"avx512_bf16", "amx_bf16", "bf16"}
# The flags that backends in kernels/catalogue.py ask for.
FEATURES: Final = frozenset({"avx512_bf16", "avx512bw", "avx512vl", "avx512dq", "avx_ne_convert", "bf16"})
_FIRST_BLOCK: Final = 16 * 1024
# (implementer, part) of ARM's cores, which have no name in the file.
_ARM_CORES: Final = {
    ("0x41", "0xd0c"): "ARM Neoverse N1",
    ("0x41", "0xd40"): "ARM Neoverse V1",
    ("0x41", "0xd49"): "ARM Neoverse N2",
    ("0x41", "0xd4f"): "ARM Neoverse V2",
    ("0x41", "0xd85"): "ARM Cortex-X925",
    ("0x41", "0xd87"): "ARM Cortex-A725",
    ("0xc0", "0xac3"): "Ampere One",
}


class Processor(NamedTuple):
    """`bfloat16`: it multiplies it, rather than to widen it first. `features` are those of `FEATURES` that it has, None
    where its flags cannot be read."""

    name: str | None
    bfloat16: bool
    features: tuple[str, ...] | None


def read_processor(cpuinfo: Path = CPUINFO) -> Processor:
    try:
        with cpuinfo.open(encoding="utf-8", errors="replace") as file:
            block = file.read(_FIRST_BLOCK).split("\n\n")[0]
    except OSError:
        return Processor(None, False, None)
    fields = {key.strip(): value.strip() for key, _, value in (line.partition(":") for line in block.splitlines())}
    name = fields.get("model name") or _ARM_CORES.get((fields.get("CPU implementer", ""), fields.get("CPU part", "")))
    flags = frozenset((fields.get("flags") or fields.get("Features") or "").split())
    return Processor(
        name or None, not _BFLOAT16_FLAGS.isdisjoint(flags), tuple(sorted(flags & FEATURES)) if flags else None
    )
