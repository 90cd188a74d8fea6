"""A layer behind a decoder's others that predicts one token further (multi-token prediction)."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch
from torch import Tensor

from appliance.checkpoint import drafting
from appliance.models.base import BuildContext
from appliance.models.batch import ForwardBatch, LayerCache
from appliance.models.layers.decoder_layer import DecoderLayer
from appliance.models.layers.norm import RMSNorm


class PredictionHead:
    """As the last layer of a config that `drafts`. `embedded` [T] -> [T, hidden] is the decoder's own embedding."""

    def __init__(self, context: BuildContext, cos_sin: Tensor, embedded: Callable[[Tensor], Tensor]) -> None:
        config, layer = context.config, context.config.num_decoder_layers
        head, hidden = drafting.head_of(config), config.hidden_size
        self._embedded = embedded
        self.embedding_norm = RMSNorm(context, head.embedding_norm, hidden)
        self.hidden_norm = RMSNorm(context, head.hidden_norm, hidden)
        self.norm = RMSNorm(context, head.norm, hidden)
        self.layer = DecoderLayer(context, layer, cos_sin)
        (name,) = head.projections
        self._projection_name = f"{name}.weight"
        self.projection = context.empty(hidden, 2 * hidden)
        self._project = context.linear_for(self.projection)

    def forward(self, batch: ForwardBatch, hidden: Tensor, cache: LayerCache) -> Tensor:
        """What the output head makes logits of, [T, hidden], as `Model.forward` gives it.

        Args:
            batch: that of the decoder, with the token behind each as its id.
            hidden: [T, hidden], what the decoder gave for it.
            cache: the layer's own, over the blocks of the others.
        """
        both = self.embedding_norm(self._embedded(batch.token_ids)), self.hidden_norm(hidden)
        residual = self._project.call(torch.cat(both, dim=-1), self.projection)
        return self.norm(self.layer(torch.zeros_like(residual), residual, batch, cache), residual)

    def room(self, tokens: int) -> Tensor:
        return self.norm.weight.new_empty(tokens, len(self.norm.weight))

    def prepare(self) -> None:
        self.projection = self._project.prepare(self.projection)
        self.layer.prepare()

    def destinations(self) -> Iterator[tuple[str, Tensor]]:
        for part in (self.embedding_norm, self.hidden_norm, self.norm, self.layer):
            yield from part.destinations()
        yield self._projection_name, self.projection

    def optional_destinations(self) -> Iterator[tuple[str, Tensor]]:
        yield from self.layer.mixer.optional_destinations()
