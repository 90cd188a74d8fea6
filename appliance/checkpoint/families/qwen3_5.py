"""Qwen3.5, dense: the layers of Qwen3-Next, with projections that are not interleaved.

Most of its checkpoints see images too. Of those the language model is run: its config is in `text_config`, and the
names of its tensors begin with `model.language_model.`.
"""

from __future__ import annotations

from typing import Final

from msgspec import structs

from appliance.checkpoint.families.decoder import read_dtype
from appliance.checkpoint.families.qwen3_next import HybridDecoder
from appliance.checkpoint.fields import Fields
from appliance.checkpoint.model_config import ModelConfig
from appliance.checkpoint.quantization import read_quantization

SEES: Final = "ForConditionalGeneration"  # what the architectures that take images end with
TEXT_CONFIG: Final = "text_config"
SIGHT: Final = "model.visual."


class SeeingDecoder(HybridDecoder, frozen=True, kw_only=True):
    """A decoder that may be a part of a model."""

    def read(self, fields: Fields, architecture: str) -> ModelConfig:
        if not architecture.endswith(SEES):
            return super().read(fields, architecture)
        if not fields.mapping(TEXT_CONFIG):
            fields.refuse(TEXT_CONFIG, "Must describe the language model.")
        config = super().read(fields.inside(TEXT_CONFIG), architecture)
        tied = fields.boolean("tie_word_embeddings", default=config.tie_word_embeddings)
        return structs.replace(
            config,
            prefix="model.language_model.",
            ignored=(*config.ignored, SIGHT),
            tie_word_embeddings=tied,
            dtype=config.dtype or read_dtype(fields),
            fp8=config.fp8 or read_quantization(fields),
        )


FAMILY = SeeingDecoder(
    model_type="qwen3_5",
)
