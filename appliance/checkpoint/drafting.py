"""A layer behind a model's others that predicts one token further: multi-token prediction (arXiv 2412.19437, 2.2).

It is given the hidden state of a token and the embedding of the next one, and says what follows that. Embedding and
output head are the model's own, though checkpoints hold copies of them.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import Final

from msgspec import structs

from appliance.checkpoint.families.base import Expected
from appliance.checkpoint.model_config import CompressedAttention, GatedDelta, Head, Layer, ModelConfig

# Whatever the family: mtp.fc.weight, model.layers.61.eh_proj.weight.
_OF_A_HEAD: Final = re.compile(r"(^|\.)mtp[._]|\.eh_proj\.")


def with_head(config: ModelConfig) -> ModelConfig:
    """The model with its `head` as the last of its layers; as it is where it has none, or has it there already."""
    head, layer, experts = config.head, config.num_hidden_layers, config.experts
    if head is None or config.drafts:
        return config
    ignored = tuple(name for name in config.ignored if not head.prefix.startswith(name))
    return structs.replace(
        config,
        num_hidden_layers=layer + 1,
        layers=(*config.layers, head.layer),
        experts=None if experts is None else structs.replace(experts, layers=experts.layers | {layer}),
        ignored=(*ignored, *head.copies),
        drafts=True,
    )


def with_drafts(config: ModelConfig, most: int) -> ModelConfig:
    """The model with room in its states for what `most` drafts of a sequence change."""
    if not most:
        return config
    return structs.replace(config, layers=tuple(_with_drafts(layer, config.head_dim, most) for layer in config.layers))


def _with_drafts(layer: Layer, head_dim: int, most: int) -> Layer:
    match layer.mixer:
        case GatedDelta() as delta:
            delta = structs.replace(delta, drafts=most)
            return structs.replace(layer, mixer=delta, cache=delta.state)
        case CompressedAttention() as compressed:
            compressed = structs.replace(compressed, drafts=most)
            return structs.replace(layer, mixer=compressed, cache=compressed.state(head_dim))
        case _:
            return layer


def hold_head(names: Iterable[str]) -> bool:
    """Whether some of these tensors are of such a layer, be it one that the engine can use or not."""
    return any(map(_OF_A_HEAD.search, names))


def is_head(config: ModelConfig, layer: int) -> bool:
    return config.drafts and layer == config.num_decoder_layers


def own_tensors(config: ModelConfig) -> Iterator[tuple[str, Expected]]:
    """What a head has beside an ordinary layer; projections are never quantised, and whole in each rank."""
    head, hidden = head_of(config), config.hidden_size
    for norm in (head.embedding_norm, head.hidden_norm, head.norm):
        yield f"{norm}.weight", Expected((hidden,))
    for projection in head.projections:
        yield f"{projection}.weight", Expected((hidden, 2 * hidden // len(head.projections)))


def head_of(config: ModelConfig) -> Head:
    """Of a config that drafts."""
    assert config.drafts
    assert config.head is not None
    return config.head
