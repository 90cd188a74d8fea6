"""The norm of an indexer's keys."""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor


class KeyNorm(NamedTuple):
    """A layer norm."""

    weight: Tensor  # [head_dim] float32
    bias: Tensor  # the same
    eps: float
