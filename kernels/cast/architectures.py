"""The architectures that can be cast, one row each."""

from __future__ import annotations

from dataclasses import dataclass

from kernels.cast.errors import CastError


@dataclass(frozen=True)
class Architecture:
    """`number` is the name in Triton and `variants()`. `shared_memory` is the most one block can have, in bytes (CUDA
    C++ Programming Guide, "Technical Specifications per Compute Capability"). `flashinfer` is FlashInfer's spelling,
    and `nvcc` the oldest compiler that supports it."""

    number: int
    shared_memory: int
    flashinfer: str
    nvcc: tuple[int, int]
    gpus: str

    @property
    def name(self) -> str:
        return f"sm_{self.number}"

    @property
    def capability(self) -> tuple[int, int]:
        return divmod(self.number, 10)


_KIB = 1024

ARCHITECTURES = {
    architecture.name: architecture
    for architecture in (
        Architecture(80, 163 * _KIB, "8.0", (11, 0), "A100, A30"),
        Architecture(86, 99 * _KIB, "8.6", (11, 1), "RTX 30, A10, A40, RTX A6000"),
        Architecture(89, 99 * _KIB, "8.9", (11, 8), "RTX 40, L4, L40S, RTX 6000 Ada"),
        Architecture(90, 227 * _KIB, "9.0a", (12, 0), "H100, H200, GH200"),
        Architecture(100, 227 * _KIB, "10.0a", (12, 8), "B200, GB200"),
        Architecture(103, 227 * _KIB, "10.3a", (12, 9), "B300, GB300"),
        Architecture(120, 99 * _KIB, "12.0a", (12, 8), "RTX 50, RTX PRO 6000 Blackwell"),
        Architecture(121, 99 * _KIB, "12.1a", (12, 9), "DGX Spark (GB10)"),
    )
}


def architecture_named(name: str) -> Architecture:
    """Raises CastError for an unknown name. "90" means "sm_90"."""
    found = ARCHITECTURES.get(name if name.startswith("sm_") else f"sm_{name}")
    if found is None:
        known = ", ".join(f"{known.name} ({known.gpus})" for known in ARCHITECTURES.values())
        raise CastError(
            "cast-architecture-unknown", f"{name!r} is not an architecture Ingot can cast for.", f"Use one of {known}."
        )
    return found
