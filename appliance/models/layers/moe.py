"""The sparse feed-forward layer: a router, and the experts of which each token goes through a few."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from appliance.checkpoint.families.decoder import expert_prefix, layer_prefix
from appliance.checkpoint.model_config import ACTIVATIONS
from appliance.models.base import BuildContext
from appliance.models.layers.weight import Weight


class SparseMoE:
    """The sum over a token's experts of weight * down(act(gate(x)) * up(x))."""

    def __init__(self, context: BuildContext, layer: int) -> None:
        config, experts = context.config, context.config.experts
        assert experts is not None
        self._config, self._experts, self._layer = config, experts, layer
        count, hidden, inner = experts.num_experts, config.hidden_size, experts.intermediate_size
        some_expert = expert_prefix(config, layer, 0)
        gate, _, down = experts.parts
        self.router = context.empty(count, hidden)
        self.selection_bias = context.empty(count, dtype=torch.float32) if experts.selection_bias else None
        self.gate_up = Weight(context, some_expert + gate, count, 2 * inner, hidden)
        self.down = Weight(context, some_expert + down, count, hidden, inner)
        self._activation = ACTIVATIONS[config.hidden_act]
        self._kernels = context.kernels

    def __call__(self, x: Tensor) -> Tensor:
        """[T, hidden] -> [T, hidden]."""
        kernels = self._kernels
        logits = kernels.linear(x, self.router)
        weights, expert_ids = kernels.moe_routing(logits, self._experts.routing, self.selection_bias)
        out: Tensor = kernels.fused_moe(
            x,
            weights,
            expert_ids,
            self.gate_up.values,
            self.down.values,
            self.gate_up.scale,
            self.down.scale,
            self._activation,
        )
        return out

    def destinations(self) -> Iterator[tuple[str, Tensor]]:
        block = f"{layer_prefix(self._layer)}{self._experts.block}."
        yield f"{block}gate.weight", self.router
        if self.selection_bias is not None:
            yield f"{block}e_score_correction_bias", self.selection_bias
        gate, up, down = self._experts.parts
        inner, hidden = self._experts.intermediate_size, self._config.hidden_size
        for expert in range(self._experts.num_experts):
            at = expert_prefix(self._config, self._layer, expert)
            yield from self.gate_up.destinations(at + gate, 0, inner, (expert,))
            yield from self.gate_up.destinations(at + up, inner, inner, (expert,))
            yield from self.down.destinations(at + down, 0, hidden, (expert,))
