"""Layers of the gated delta rule: projection, causal convolution, the recurrence over a state, gated norm, output."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from appliance.checkpoint.model_config import GatedDelta
from appliance.models.base import BuildContext
from appliance.models.batch import ForwardBatch, LayerCache, StateCache
from appliance.models.layers.linear import Linear, rows_by_part
from kernels.delta_rule.reference import Kept
from kernels.fp8_linear.rounded import Rounded, rows_of


class GatedDeltaRule:
    """The inputs are projected to queries, keys and values, which the convolution sees side by side, to a gate z of the
    result, and to the gates b and a of the recurrence."""

    def __init__(self, context: BuildContext, prefix: str, mixer: GatedDelta) -> None:
        config, heads = context.config, mixer.num_value_heads
        hidden, values = config.hidden_size, heads * mixer.value_dim
        self._mixer, self._prefix = mixer, prefix
        mixed = {"in_proj_qkv": mixer.conv_channels, "in_proj_z": values}
        gates = {"in_proj_b": heads, "in_proj_a": heads}
        if mixer.packed:
            mixed, gates = {"in_proj_qkvz": mixer.conv_channels + values}, {"in_proj_ba": 2 * heads}
        # The gates are a product of their own where weights are in FP8, which they never are.
        together = config.fp8 is None
        self.mixed = Linear(context, prefix, hidden, mixed | gates if together else mixed)
        self.gates = None if together else Linear(context, prefix, hidden, gates)
        self.conv = context.empty(mixer.conv_channels, 1, mixer.conv_width)
        self.a_log = context.empty(heads, dtype=torch.float32)
        self.dt_bias = context.empty(heads, dtype=torch.float32)
        self.norm = context.empty(mixer.value_dim)
        self.out = Linear(context, prefix, values, {"out_proj": hidden})
        self._eps = config.rms_norm_eps
        self._kernels = context.kernels

    @property
    def in_fp8(self) -> bool:
        return False  # of its products of the hidden state some never are

    def __call__(self, x: Tensor | Rounded, batch: ForwardBatch, cache: LayerCache) -> Tensor:
        """[T, hidden] -> [T, hidden]."""
        x = rows_of(x)
        assert isinstance(cache, StateCache)
        state, inputs, *of_drafts = cache.tensors
        kept_inputs, kept = (of_drafts[0], Kept(*of_drafts[1:])) if of_drafts else (None, None)
        mixer, kernels = self._mixer, self._kernels
        heads, keys = mixer.num_value_heads, mixer.num_key_heads * mixer.key_dim
        mixed, z, b, a = self._projected(x)
        mixed = kernels.causal_conv(
            mixed, self.conv[:, 0], inputs, batch.slots, batch.attention, batch.chains, kept_inputs
        )
        query, key, value = mixed.split((keys, keys, heads * mixer.value_dim), dim=-1)
        out = kernels.delta_rule(
            query.unflatten(-1, (-1, mixer.key_dim)), key.unflatten(-1, (-1, mixer.key_dim)),
            value.unflatten(-1, (heads, -1)), a, b, self.a_log, self.dt_bias, state, batch.slots, batch.attention,
            batch.chains, kept,
        )  # fmt: skip
        out = kernels.gated_norm(out, z.unflatten(-1, (heads, -1)), self.norm, self._eps)
        return self.out(out.flatten(1))

    def _projected(self, x: Tensor) -> tuple[Tensor, ...]:
        """Queries, keys and values together [T, channels], z [T, heads * value_dim], b and a [T, heads]."""
        mixer, heads = self._mixer, self._mixer.num_value_heads
        sizes = (mixer.conv_channels, heads * mixer.value_dim)
        if self.gates is None:
            return tuple(self.mixed(x).split((*sizes, heads, heads), dim=-1))
        return *self.mixed(x).split(sizes, dim=-1), *self.gates(x).split(heads, dim=-1)

    def prepare(self) -> None:
        if self._mixer.packed:
            self._unpack()
        for linear in (self.mixed, self.gates, self.out):
            if linear is not None:
                linear.prepare()

    def _unpack(self) -> None:
        """Bring the heads' parts together, which the checkpoint has by key head."""
        mixer, device = self._mixer, self.conv.device
        group = mixer.num_value_heads // mixer.num_key_heads
        values = group * mixer.value_dim
        rows = torch.cat(rows_by_part(mixer.num_key_heads, (mixer.key_dim, mixer.key_dim, values, values), device))
        gates = torch.cat(rows_by_part(mixer.num_key_heads, (group, group), device))
        if self.gates is None:
            self.mixed.reorder(torch.cat((rows, gates + len(rows))))
        else:
            self.mixed.reorder(rows)
            self.gates.reorder(gates)

    def destinations(self) -> Iterator[tuple[str, Tensor]]:
        for linear in (self.mixed, self.gates, self.out):
            if linear is not None:
                yield from linear.destinations()
        yield f"{self._prefix}conv1d.weight", self.conv
        yield f"{self._prefix}A_log", self.a_log
        yield f"{self._prefix}dt_bias", self.dt_bias
        yield f"{self._prefix}norm.weight", self.norm

    def optional_destinations(self) -> Iterator[tuple[str, Tensor]]:
        return iter(())
