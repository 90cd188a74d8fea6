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
from appliance.checkpoint.families.decoder import layer_prefix
from appliance.checkpoint.model_config import ModelConfig

EMBEDDING_NORM: Final = "enorm"
HIDDEN_NORM: Final = "hnorm"
PROJECTION: Final = "eh_proj"  # of the normed embedding, then the normed hidden state
LAST_NORM: Final = "shared_head.norm"
# Whatever the family: mtp.fc.weight, model.layers.61.eh_proj.weight.
_OF_A_HEAD: Final = re.compile(r"(^|\.)mtp[._]|\.eh_proj\.")
_COPIES: Final = ("embed_tokens.", "shared_head.head.")


def with_head(config: ModelConfig) -> ModelConfig:
    """The model with its `head` as the last of its layers; as it is where it has none, or has it there already."""
    if config.head is None:
        return config
    layer, experts = config.num_hidden_layers, config.experts
    at = layer_prefix(config, layer)
    ignored = tuple(name for name in config.ignored if name != at)
    return structs.replace(
        config,
        num_hidden_layers=layer + 1,
        layers=(*config.layers, config.head),
        experts=None if experts is None else structs.replace(experts, layers=experts.layers | {layer}),
        ignored=(*ignored, *(at + copy for copy in _COPIES)),
        head=None,
        drafts=True,
    )


def hold_head(names: Iterable[str]) -> bool:
    """Whether some of these tensors are of such a layer, be it one that the engine can use or not."""
    return any(map(_OF_A_HEAD.search, names))


def is_head(config: ModelConfig, layer: int) -> bool:
    return config.drafts and layer == config.num_decoder_layers


def own_tensors(config: ModelConfig) -> Iterator[tuple[str, Expected]]:
    """What a head has beside an ordinary layer; the projection is never quantised, and whole in each rank."""
    at, hidden = layer_prefix(config, config.num_decoder_layers), config.hidden_size
    for norm in (EMBEDDING_NORM, HIDDEN_NORM, LAST_NORM):
        yield f"{at}{norm}.weight", Expected((hidden,))
    yield f"{at}{PROJECTION}.weight", Expected((hidden, 2 * hidden))
