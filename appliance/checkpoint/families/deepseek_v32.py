"""DeepSeek V3.2: V3 with sparse attention, in which a small indexer chooses the tokens that a query sees
(arXiv 2512.02556)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

from msgspec import structs

from appliance.checkpoint.cache_specs import Indexer
from appliance.checkpoint.families import indexer
from appliance.checkpoint.families.base import Expected, Projection
from appliance.checkpoint.families.decoder import Heads, layer_prefix
from appliance.checkpoint.families.deepseek_v3 import DEFAULTS, EXPERTS, DeepseekV3
from appliance.checkpoint.fields import Fields
from appliance.checkpoint.model_config import Head, Indexing, LatentAttention, Layer, ModelConfig
from appliance.checkpoint.rope import Rope

FULL, SHARED = "full", "shared"
_LETTERS: Final = {"F": FULL, "S": SHARED}


class DeepseekV32(DeepseekV3, frozen=True, kw_only=True):
    """Layers of which the config says so have no indexer: they attend to what the last one before them chose
    (arXiv 2603.12201). `interleaved` is how indexers turn where the config does not say it."""

    interleaved: bool = False

    @property
    def defaults(self) -> Mapping[str, Any]:
        return {**DEFAULTS, "index_n_heads": 64, "index_head_dim": 128, "index_topk": 2048}

    def read(self, fields: Fields, architecture: str) -> ModelConfig:
        config = super().read(fields, architecture)
        # Some exporters leave in the weights of indexers that the model has no use for.
        without = (number for number, layer in enumerate(config.layers) if layer.index is None)
        unused = tuple(f"{layer_prefix(config, number)}{indexer.PREFIX}" for number in without)
        return structs.replace(config, ignored=config.ignored + unused)

    def read_head(self, fields: Fields, config: ModelConfig) -> Head | None:
        """It has an indexer of its own, though others may share one."""
        head = super().read_head(fields, config)
        full = next(layer for layer in reversed(config.layers) if layer.index is not None)
        return None if head is None else structs.replace(head, layer=full)

    def has_sparse_head(self, fields: Fields, layer: int) -> bool:
        """`mlp_layer_types` ends before it."""
        return fields.given.get("mlp_layer_types") is not None or super().has_sparse_head(fields, layer)

    def read_layers(self, fields: Fields, num_layers: int, heads: Heads, rope: Rope) -> tuple[Layer, ...]:
        indexing = self._read_indexing(fields, rope)
        index = Indexer(head_dim=indexing.head_dim)
        return tuple(
            structs.replace(
                layer,
                mixer=structs.replace(_latent(layer), indexing=indexing),
                index=index if kind == FULL else None,
            )
            for layer, kind in zip(
                super().read_layers(fields, num_layers, heads, rope), _kinds(fields, num_layers), strict=True
            )
        )

    def _read_indexing(self, fields: Fields, rope: Rope) -> Indexing:
        fields.integer("q_lora_rank", 1, 1 << 16)  # what the indexer makes its queries from
        head_dim = fields.integer("index_head_dim", 2, 1 << 10)
        if head_dim < rope.rotary_dim:
            fields.refuse("index_head_dim", f"Must be at least qk_rope_head_dim ({rope.rotary_dim}).")
        if head_dim & (head_dim - 1):
            fields.unsupported("index_head_dim", f"an indexer with keys of {head_dim:,} numbers", "powers of two")
        return Indexing(
            num_heads=fields.integer("index_n_heads", 1, 1 << 10),
            head_dim=head_dim,
            top_k=fields.integer("index_topk", 1, 1 << 20),
            interleaved=fields.boolean("indexer_rope_interleave", default=self.interleaved),
        )

    def read_sparse_layers(self, fields: Fields, num_layers: int) -> frozenset[int]:
        """As listed in `mlp_layer_types`, where they are."""
        kinds = _listed(fields, "mlp_layer_types", num_layers, ("dense", "sparse"))
        if kinds is None:
            return super().read_sparse_layers(fields, num_layers)
        return frozenset(layer for layer, kind in enumerate(kinds) if kind == "sparse")

    def products(self, config: ModelConfig, layer: int) -> Iterator[tuple[Projection, ...]]:
        yield from super().products(config, layer)
        if config.layers[layer].index is not None:
            yield from indexer.products(config, layer)

    def norms_and_routers(self, config: ModelConfig, layer: int) -> Iterator[tuple[str, Expected]]:
        yield from super().norms_and_routers(config, layer)
        if config.layers[layer].index is not None:
            yield from indexer.norms_and_weights(config, layer)


def _latent(layer: Layer) -> LatentAttention:
    assert isinstance(layer.mixer, LatentAttention)
    return layer.mixer


def _kinds(fields: Fields, num_layers: int) -> tuple[str, ...]:
    """Of each layer, whether it has an indexer: as listed, or by `index_topk_pattern`, or every so many layers."""
    name, kinds = "indexer_types", _listed(fields, "indexer_types", num_layers, (FULL, SHARED))
    if kinds is None:
        name, kinds = "index_topk_pattern", _pattern(fields, num_layers)
    if kinds is None:
        freq = fields.integer("index_topk_freq", 1, 1 << 12, default=1)
        offset = fields.integer("index_skip_topk_offset", 0, 1 << 12, default=2)
        name = "index_skip_topk_offset"
        kinds = tuple(SHARED if max(layer - offset + 1, 0) % freq else FULL for layer in range(num_layers))
    if kinds[0] != FULL:
        fields.refuse(name, "The first layer must have an indexer: there is none before it.")
    return kinds


def _pattern(fields: Fields, num_layers: int) -> tuple[str, ...] | None:
    """A letter for each layer, or a list as of `indexer_types`."""
    given = fields.given.get("index_topk_pattern")
    if not isinstance(given, str):
        return _listed(fields, "index_topk_pattern", num_layers, (FULL, SHARED))
    if len(given) != num_layers or not set(given) <= set(_LETTERS):
        fields.refuse("index_topk_pattern", f"Must have F or S for each of the {num_layers} layers.")
    return tuple(_LETTERS[letter] for letter in given)


def _listed(fields: Fields, name: str, num_layers: int, kinds: tuple[str, ...]) -> tuple[str, ...] | None:
    given = fields.given.get(name)
    if given is None:
        return None
    if not isinstance(given, list) or len(given) != num_layers or any(kind not in kinds for kind in given):
        fields.refuse(name, f"Must list {' or '.join(kinds)} for each of the {num_layers} layers.")
    return tuple(given)


FAMILY = DeepseekV32(model_type="deepseek_v32", qkv_bias=None, output_bias=None, experts=EXPERTS)
