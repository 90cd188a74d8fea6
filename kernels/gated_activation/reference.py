"""Gated activation in plain torch."""

from __future__ import annotations

from torch import Tensor
from torch.nn import functional


def gated_activation(gate_up: Tensor, activation: str = "silu", limit: float | None = None) -> Tensor:
    """act(gate) * up for `gate_up` [T, 2 * N] (gate first): [T, N] (Shazeer, 2020).

    Args:
        activation: one of `ACTIVATIONS`; "gelu" is the exact one (erf), "gelu_tanh" its approximation.
        limit: if given, gate is clamped to at most `limit` and up to -limit .. limit first.
    """
    gate, up = gate_up.chunk(2, dim=-1)
    if limit is not None:
        gate, up = gate.clamp(max=limit), up.clamp(-limit, limit)
    match activation:
        case "silu":
            return functional.silu(gate).mul_(up)
        case "gelu":
            return functional.gelu(gate).mul_(up)
        case "gelu_tanh":
            return functional.gelu(gate, approximate="tanh").mul_(up)
    raise ValueError(f"unknown activation {activation!r}")
