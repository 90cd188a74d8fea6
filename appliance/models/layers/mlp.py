"""The gated feed-forward layer: of dense models, of the dense layers of sparse ones, and of shared experts."""

from __future__ import annotations

from collections.abc import Iterator

from torch import Tensor

from appliance.checkpoint.families.decoder import PARTS
from appliance.checkpoint.model_config import ACTIVATIONS
from appliance.models.base import BuildContext
from appliance.models.layers.linear import Linear
from kernels.fp8_linear.rounded import Rounded


class GatedMLP:
    """down(act(gate(x)) * up(x)), where gate(x) and up(x) are clamped to `limit`; `parts` are the three's names."""

    def __init__(
        self,
        context: BuildContext,
        prefix: str,
        inner: int,
        parts: tuple[str, str, str] = PARTS,
        limit: float | None = None,
    ) -> None:
        config, (gate, up, down) = context.config, parts
        hidden = config.hidden_size
        self.gate_up = Linear(context, prefix, hidden, {gate: inner, up: inner}, config.mlp_bias, gated=True)
        self.down = Linear(context, prefix, inner, {down: hidden}, config.mlp_bias)
        self._limit = limit
        self._activation = ACTIVATIONS[config.hidden_act]

    @property
    def in_fp8(self) -> bool:
        """As `Mixer.in_fp8`."""
        return self.gate_up.in_fp8

    def __call__(self, x: Tensor | Rounded) -> Tensor:
        """[T, hidden] -> [T, hidden]."""
        return self.down(self.gate_up.gated(x, self._activation, self._limit))

    def prepare(self) -> None:
        self.gate_up.prepare()
        self.down.prepare()

    def destinations(self) -> Iterator[tuple[str, Tensor]]:
        yield from self.gate_up.destinations()
        yield from self.down.destinations()
