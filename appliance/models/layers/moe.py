"""The sparse feed-forward layer: a router, and the experts of which each token goes through a few."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import torch
from torch import Tensor

from appliance.checkpoint.errors import CheckpointError
from appliance.checkpoint.experts import TABLE
from appliance.checkpoint.families.decoder import expert_prefix, layer_prefix
from appliance.checkpoint.model_config import ACTIVATIONS
from appliance.models.base import BuildContext
from appliance.models.layers.mlp import GatedMLP
from appliance.models.layers.weight import Weight
from kernels.fp8_linear.rounded import Rounded, rows_of


class SparseMoE:
    """The sum over a token's experts of weight * down(act(gate(x)) * up(x)), and over those that all tokens share."""

    def __init__(self, context: BuildContext, layer: int) -> None:
        config, experts = context.config, context.config.experts
        assert experts is not None
        self._config, self._experts, self._layer = config, experts, layer
        count, hidden, inner = experts.num_experts, config.hidden_size, experts.intermediate_size
        some_expert = expert_prefix(config, layer, 0)
        gate, _, down = experts.parts
        self.router = context.empty(count, hidden)
        self.selection_bias = self.table = None
        if layer in experts.hashed:
            self.table = context.empty(config.vocab_size, experts.routing.top_k, dtype=torch.int64)
        elif experts.selection_bias:
            self.selection_bias = context.empty(count, dtype=torch.float32)
        self.gate_up = Weight(context, some_expert + gate, count, 2 * inner, hidden)
        self.down = Weight(context, some_expert + down, count, hidden, inner)
        self._block = f"{layer_prefix(config, layer)}{experts.block}."
        self.shared = self.shared_gate = None
        if experts.shared is not None:
            inner = experts.shared.intermediate_size
            at, parts = f"{self._block}{experts.shared.name}.", experts.shared.parts
            self.shared = GatedMLP(context, at, inner, parts, experts.limit)
            self.shared_gate = context.empty(1, hidden) if experts.shared.gate else None
        self._activation = ACTIVATIONS[config.hidden_act]
        self._kernels = context.kernels
        self._route = (
            context.float32_linear_for(self.router)
            if experts.router_dtype
            else partial(context.linear_for(self.router).call, weight=self.router)
        )
        self._gate_shared = None if self.shared_gate is None else context.linear_for(self.shared_gate).call

    @property
    def in_fp8(self) -> bool:
        """As `Mixer.in_fp8`."""
        return self.gate_up.scale is not None and not self.gate_up.packed

    def __call__(self, x: Tensor | Rounded, token_ids: Tensor | None = None) -> Tensor:
        """[T, hidden] -> [T, hidden]. Where tokens have experts of their own, their ids [T] are given."""
        kernels, routing, rows = self._kernels, self._experts.routing, rows_of(x)
        shared = None
        if self.shared is not None:
            shared = self.shared(x)
            if self._gate_shared is not None:
                shared *= torch.sigmoid(self._gate_shared(rows, self.shared_gate))
        logits = self._route(rows)
        chosen = None if self.table is None else self.table[token_ids]
        # Experts in MXFP4 have tiles of their own, for which nothing is sorted here.
        sorted_for = None if self.gate_up.packed else self.in_fp8
        routed = kernels.moe_routing(logits, routing, self.selection_bias, chosen, sorted_for)
        out: Tensor = kernels.fused_moe(
            x,
            routed.weights,
            routed.expert_ids,
            self.gate_up.values,
            self.down.values,
            self.gate_up.scale,
            self.down.scale,
            self._activation,
            self._experts.limit,
            routed.by_expert,
            shared,
        )
        return out

    def prepare(self) -> None:
        """Raises CheckpointError for a table that names experts that are not there."""
        self._check_table()
        if self.shared is not None:
            self.shared.prepare()

    def _check_table(self) -> None:
        """Kernels take its entries as they are, and would read beyond the weights."""
        if self.table is None:
            return
        least, most = map(int, torch.aminmax(self.table))
        last = self._experts.num_experts - 1
        if least >= 0 and most <= last:
            return
        name, wrong = f"{self._block}{TABLE}", least if least < 0 else most
        raise CheckpointError(
            "weights-unreadable",
            f"{name} names expert {wrong}; there are 0 to {last}.",
            field=name,
            value=wrong,
            remedy="Copy the model's files again from where they came from.",
        )

    def destinations(self) -> Iterator[tuple[str, Tensor]]:
        yield f"{self._block}gate.weight", self.router
        if self.selection_bias is not None:
            yield f"{self._block}{self._experts.selection_bias_name}", self.selection_bias
        if self.table is not None:
            yield f"{self._block}{TABLE}", self.table
        if self.shared is not None:
            yield from self.shared.destinations()
        if self._experts.shared is not None and self.shared_gate is not None:
            yield f"{self._block}{self._experts.shared.gate}.weight", self.shared_gate
        gate, up, down = self._experts.parts
        inner, hidden = self._experts.intermediate_size, self._config.hidden_size
        for expert in range(self._experts.num_experts):
            at = expert_prefix(self._config, self._layer, expert)
            yield from self.gate_up.destinations(at + gate, 0, inner, (expert,))
            yield from self.gate_up.destinations(at + up, inner, inner, (expert,))
            yield from self.down.destinations(at + down, 0, hidden, (expert,))
