"""Torch's allocator on GPUs."""

from __future__ import annotations

import os
from typing import Final

# It holds blocks of set sizes, and up to 500 MiB of holes between them; one segment that grows has none.
GROWING: Final = "expandable_segments:True"
# Torch reads the first of them that is there, however empty.
VARIABLES: Final = ("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF")


def growing_segments() -> None:
    """Before torch is imported; not where a person has set something."""
    if not os.environ.keys() & set(VARIABLES):
        os.environ[VARIABLES[0]] = GROWING


def contiguous_segments() -> None:
    """Without `growing_segments`, before memory is allocated: other ranks' GPUs cannot map such memory
    (`appliance/preflight/checks/allocator.py`). Imports torch."""
    import torch

    if os.environ.get(VARIABLES[0]) == GROWING:
        torch._C._accelerator_setAllocatorSettings("expandable_segments:False")
