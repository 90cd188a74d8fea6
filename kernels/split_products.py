"""What products share that are split along their inner dimension, each tile's parts being summed by the last of its
programs."""

from __future__ import annotations

import functools

import torch
from torch import Tensor

# Tiles of a product that is split, at most: there are fewer than processors, or few times as many.
COUNTERS = 1 << 14


@functools.cache
def processors() -> int:
    return torch.cuda.get_device_properties().multi_processor_count if torch.cuda.is_available() else 132


@functools.cache
def arrived(device: torch.device) -> Tensor:
    """Zeros, to which each tile's last program returns its own: kernels of one stream can share them."""
    return torch.zeros(COUNTERS, dtype=torch.int32, device=device)
