"""The gated feed-forward layer of dense models."""

from __future__ import annotations

from collections.abc import Iterator

from torch import Tensor

from appliance.models.base import BuildContext
from appliance.models.layers.linear import Linear


class GatedMLP:
    """down(silu(gate(x)) * up(x))."""

    def __init__(self, context: BuildContext) -> None:
        config = context.config
        hidden, inner = config.hidden_size, config.intermediate_size
        self.gate_up = Linear(context, hidden, {"gate_proj": inner, "up_proj": inner}, config.mlp_bias)
        self.down = Linear(context, inner, {"down_proj": hidden}, config.mlp_bias)
        self._gated_activation = context.kernels.gated_activation

    def __call__(self, x: Tensor) -> Tensor:
        """[T, hidden] -> [T, hidden]."""
        return self.down(self._gated_activation(self.gate_up(x)))

    def destinations(self, prefix: str) -> Iterator[tuple[str, Tensor]]:
        yield from self.gate_up.destinations(prefix)
        yield from self.down.destinations(prefix)
