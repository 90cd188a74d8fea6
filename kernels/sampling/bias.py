"""What requests add to single logits. Few do, and to few tokens: torch serves every backend."""

from __future__ import annotations

import torch
from torch import Tensor


def add_biases(logits: Tensor, biases: Tensor) -> None:
    """In place, after the penalties. What is -inf stays so.

    Args:
        logits: [S, V] float32, finite but for -inf.
        biases: [3, B] int32, as `SamplingBatch.biases`.
    """
    rows, tokens = biases[:2].long()
    logits[rows, tokens] += biases[2].view(torch.float32)
