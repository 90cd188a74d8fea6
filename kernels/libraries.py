"""Which of the libraries named by backends are installed, found without importing them."""

from __future__ import annotations

from functools import cache
from importlib import metadata

from kernels.cpu import library

# The name that backends use -> the distribution's.
DISTRIBUTIONS = {
    "triton": "triton",
    "flashinfer": "flashinfer-python",
    "vllm": "vllm",
    "deep_gemm": "deep-gemm",
    "flash_mla": "flash-mla",
    "tilelang": "tilelang",
}


@cache
def installed() -> dict[str, str]:
    """Name -> version of those installed; of the kernels in C++ their instruction set."""
    found = {}
    for name, distribution in DISTRIBUTIONS.items():
        try:
            found[name] = metadata.version(distribution)
        except metadata.PackageNotFoundError:
            continue
    return found | library.found()
