"""The pre-norm decoder that all families share."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor

from appliance.checkpoint.families.decoder import EMBEDDING, HEAD, NORM
from appliance.models.base import BuildContext, Drafter
from appliance.models.batch import ForwardBatch, LayerCache
from appliance.models.layers.decoder_layer import DecoderLayer
from appliance.models.layers.norm import RMSNorm
from appliance.models.layers.prediction_head import PredictionHead
from kernels.rotary_cache.frequencies import cos_sin_table, inverse_frequencies


class Decoder:
    """Embedding, layers, norm, head, as the config describes them; and a head for drafts, where that has one. A decoder
    whose residual is of another kind has its own `build_layers` and `forward`."""

    # What checkpoints call them, behind the config's prefix but for the head.
    embedding_name, norm_name, head_name = EMBEDDING, NORM, HEAD

    def __init__(self, context: BuildContext) -> None:
        config = context.config
        self._kernels, self._group = context.kernels, context.group
        self.embedding = context.empty(config.vocab_rows, config.hidden_size)
        self._has_whole_head = self._group.count == 1 and config.vocab_rows == config.vocab_size
        self._vocab_size, self._first_token = config.vocab_size, context.group.rank * config.vocab_rows
        self.layers, self.drafter = self.build_layers(context)
        self.norm = RMSNorm(context, config.prefix + self.norm_name, config.hidden_size)
        self._prefix = config.prefix
        self.tied = config.tie_word_embeddings
        self.head = self.embedding if self.tied else context.empty(config.vocab_rows, config.hidden_size)
        self._multiply_head = context.linear_for(self.head)

    def build_layers(self, context: BuildContext) -> tuple[Sequence[Any], Drafter | None]:
        """Those of the decoder, and the head that drafts, which turns by the same table."""
        config = context.config
        inverse, factor = inverse_frequencies(config.rotary_dim, config.rope_theta, config.rope_scaling)
        cos_sin = cos_sin_table(inverse, factor, context.max_model_len, context.dtype).to(context.device)
        layers = [DecoderLayer(context, layer, cos_sin) for layer in range(config.num_decoder_layers)]
        return layers, PredictionHead(context, cos_sin, self._embedded) if config.drafts else None

    def destinations(self) -> Mapping[str, Tensor]:
        found = {self._prefix + self.embedding_name: self.embedding}
        for layer in self.layers:
            found.update(layer.destinations())
        found.update(self.norm.destinations())
        if self.drafter is not None:
            found.update(self.drafter.destinations())
        if not self.tied:
            found[self.head_name] = self.head
        return found

    def optional_destinations(self) -> Mapping[str, Tensor]:
        found = {name: tensor for layer in self.layers for name, tensor in layer.mixer.optional_destinations()}
        if self.drafter is not None:
            found.update(self.drafter.optional_destinations())
        return found

    def prepare(self) -> None:
        for layer in self.layers:
            layer.prepare()
        if self.drafter is not None:
            self.drafter.prepare()
        self.head = self._multiply_head.prepare(self.head)

    def forward(self, batch: ForwardBatch, caches: Sequence[LayerCache]) -> Tensor:
        residual = self._embedded(batch.token_ids)
        x = residual.new_zeros(residual.shape)
        for layer, cache in zip(self.layers, caches[: len(self.layers)], strict=True):
            x = layer(x, residual, batch, cache)
        return self.norm(x, residual)

    def _embedded(self, token_ids: Tensor) -> Tensor:
        """Of tokens that other ranks have the rows of, this one has zeros."""
        kernels, group = self._kernels, self._group
        if group.count == 1:
            found: Tensor = kernels.embedding(token_ids, self.embedding)
            return found
        rows = token_ids - self._first_token
        absent = (rows < 0) | (rows >= len(self.embedding))
        found = kernels.embedding(rows.masked_fill_(absent, 0), self.embedding)
        return group.sum(found.masked_fill_(absent[:, None], 0))

    def compute_logits(self, hidden: Tensor, out: Tensor | None = None) -> Tensor:
        if out is not None and self._has_whole_head and out.dtype == hidden.dtype:
            in_place: Tensor = self._multiply_head.call(hidden, self.head, out=out)
            return in_place
        logits = self._group.gather(self._multiply_head.call(hidden, self.head))[:, : self._vocab_size]
        return logits.float().contiguous() if out is None else out.copy_(logits)
