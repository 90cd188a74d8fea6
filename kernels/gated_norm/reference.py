"""Gated norm in plain torch."""

from __future__ import annotations

from torch import Tensor
from torch.nn.functional import rms_norm, silu


def gated_norm(x: Tensor, gate: Tensor, weight: Tensor, eps: float) -> Tensor:
    """x / sqrt(mean(x^2) + eps) * weight * silu(gate), over the last dimension (as in Qwen3-Next).

    Args:
        x: [T, heads, N], normalised head by head; of any stride between tokens.
        gate: [T, heads, N], likewise.
        weight: [N].

    Returns:
        [T, heads, N], new and contiguous, in the dtype of `x`. All of it is computed in float32 and rounded once.
    """
    return rms_norm(x.float(), weight.shape, weight.float(), eps).mul_(silu(gate.float())).to(x.dtype)
