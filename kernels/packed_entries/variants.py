"""The entries that kernels have forms for: those of the published models. This module imports no torch."""

from __future__ import annotations

from typing import Final

from kernels.fp8_linear.variants import has_fp8

DIM: Final = 512
ROPE: Final = 64


def pages_of(arch: int) -> tuple[str, str, str]:
    """How a kernel is given packed pages: `packed_entries.triton.Pages.views`."""
    return "*fp8e4nv" if has_fp8(arch) else "*u8", "*bf16", "*i64"
