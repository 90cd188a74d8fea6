"""GPUs that one may ask about without having one: a row each."""

from __future__ import annotations

import difflib
import re
from typing import Final

import msgspec

from appliance.hardware.gpu import Gpu

_GIB: Final = 1 << 30


class KnownGpu(msgspec.Struct, frozen=True):
    """`memory_gib` is what the board is sold with. `unified`: shared with the processor. `aliases` are other names;
    an alias that is typed in full is taken even where it begins several names."""

    name: str
    compute_capability: tuple[int, int]
    memory_gib: int
    aliases: tuple[str, ...] = ()
    unified: bool = False

    @property
    def architecture(self) -> str:
        return "sm_{}{}".format(*self.compute_capability)

    def as_gpu(self) -> Gpu:
        """As if it were the one GPU of a machine, and nothing ran on it."""
        size = self.memory_gib * _GIB
        return Gpu(
            uuid="GPU-00000000-0000-0000-0000-000000000000",
            index=0,
            name=self.name,
            memory_bytes=size,
            memory_free_bytes=size,
            compute_capability=self.compute_capability,
            memory_kind="unified" if self.unified else "dedicated",
        )


KNOWN_GPUS: Final = (
    KnownGpu("RTX PRO 6000 Blackwell", (12, 0), 96),
    KnownGpu("RTX PRO 5000 Blackwell", (12, 0), 48, ("RTX PRO 5000",)),
    KnownGpu("RTX PRO 5000 72GB Blackwell", (12, 0), 72),
    KnownGpu("RTX PRO 4500 Blackwell", (12, 0), 32),
    KnownGpu("RTX PRO 4000 Blackwell", (12, 0), 24),
    KnownGpu("GeForce RTX 5090", (12, 0), 32),
    KnownGpu("GeForce RTX 5080", (12, 0), 16),
    KnownGpu("DGX Spark (GB10)", (12, 1), 128, ("GB10", "Spark"), unified=True),
    KnownGpu("B200", (10, 0), 180),
    KnownGpu("GB200", (10, 0), 186),
    KnownGpu("B300", (10, 3), 270),
    KnownGpu("GB300", (10, 3), 270),
    KnownGpu("H200", (9, 0), 141, ("H200 NVL",)),
    KnownGpu("H100 80GB", (9, 0), 80, ("H100", "H800")),
    KnownGpu("H100 NVL", (9, 0), 94),
    KnownGpu("H20", (9, 0), 96),
    KnownGpu("GH200 96GB", (9, 0), 96, ("GH200",)),
    KnownGpu("GH200 144GB", (9, 0), 144),
    KnownGpu("L40S", (8, 9), 48),
    KnownGpu("L40", (8, 9), 48),
    KnownGpu("L4", (8, 9), 24),
    KnownGpu("RTX 6000 Ada", (8, 9), 48),
    KnownGpu("RTX 5000 Ada", (8, 9), 32),
    KnownGpu("RTX 4500 Ada", (8, 9), 24),
    KnownGpu("RTX 4000 Ada", (8, 9), 20),
    KnownGpu("GeForce RTX 4090", (8, 9), 24),
    KnownGpu("GeForce RTX 4080", (8, 9), 16),
    KnownGpu("RTX A6000", (8, 6), 48),
    KnownGpu("RTX A5000", (8, 6), 24),
    KnownGpu("RTX A4000", (8, 6), 16),
    KnownGpu("GeForce RTX 3090", (8, 6), 24),
    KnownGpu("A40", (8, 6), 48),
    KnownGpu("A10", (8, 6), 24, ("A10G",)),
    KnownGpu("A100 80GB", (8, 0), 80, ("A100", "A800")),
    KnownGpu("A100 40GB", (8, 0), 40),
    KnownGpu("A30", (8, 0), 24),
    KnownGpu("T4", (7, 5), 16),
    KnownGpu("V100 32GB", (7, 0), 32, ("V100",)),
)

# Words of the drivers' names for boards that tell no two rows apart.
_NOISE: Final = frozenset(
    re.findall(
        r"\w+",
        "NVIDIA GeForce Tesla Quadro DGX generation workstation server edition max q GPU PCIe"
        " HBM2 HBM3 HBM3e SXM SXM2 SXM3 SXM4 SXM5".lower(),
    )
)


class UnknownGpuError(ValueError):
    """`nearest` are the names that are like what was asked for; all known ones where none is."""

    def __init__(self, message: str, nearest: tuple[str, ...]) -> None:
        super().__init__(message)
        self.nearest = nearest


def known_gpu(wanted: str) -> KnownGpu:
    """The row that a name means: "rtx pro 6000", "H100", "NVIDIA A100-SXM4-80GB", or "sm_120" for the first of those.

    Raises UnknownGpuError for a name that means none of them, or several.
    """
    words = set(_words(wanted))
    for gpu in KNOWN_GPUS:
        if words in _names(gpu) or wanted.strip().lower() == gpu.architecture:
            return gpu
    found = [gpu for gpu in KNOWN_GPUS if words and words <= set(_words(gpu.name))]
    if not found:  # a driver's name may hold more words than ours
        found = [gpu for gpu in KNOWN_GPUS if any(name <= words for name in _names(gpu))]
        most = max((len(_words(gpu.name)) for gpu in found), default=0)
        found = [gpu for gpu in found if len(_words(gpu.name)) == most]
    if len(found) == 1:
        return found[0]
    names = tuple(gpu.name for gpu in found)
    if names:
        raise UnknownGpuError(f"{wanted!r} may be {' or '.join(names)}.", names)
    everything = {" ".join(_words(gpu.name)): gpu.name for gpu in KNOWN_GPUS}
    alike = difflib.get_close_matches(" ".join(_words(wanted[:64])), everything, n=3)
    nearest = tuple(everything[name] for name in alike)
    raise UnknownGpuError(f"Unknown GPU {wanted!r}.", nearest or tuple(everything.values()))


def is_unified(name: str) -> bool:
    """Whether the GPU that a driver calls so is known to share the processor's memory."""
    try:
        return known_gpu(name).unified
    except UnknownGpuError:
        return False


def _names(gpu: KnownGpu) -> list[set[str]]:
    return [set(_words(name)) for name in (gpu.name, *gpu.aliases)]


def _words(name: str) -> list[str]:
    """ "NVIDIA A100-SXM4-80 GB" -> ["a100", "80gb"]."""
    joined = re.sub(r"(\d+)\s*(g|gb|gib)\b", r"\1gb", name.lower())
    return [word for word in re.findall(r"[a-z0-9]+", joined) if word not in _NOISE]
