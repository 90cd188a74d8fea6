"""The number format of an indexer's keys and queries: 8 bits, or MXFP4, which DeepSeek V4 was trained for."""

from __future__ import annotations

from typing import Final

from msgspec import structs

from appliance.checkpoint.cache_specs import CompressedKeys
from appliance.checkpoint.model_config import CompressedAttention, Indexing, Layer, ModelConfig
from kernels.indexer import GROUP_OF_4_BITS

AUTO: Final = "auto"
FP8: Final = "fp8"
MXFP4: Final = "mxfp4"


def fits(head_dim: int) -> bool:
    """Whether keys of so many numbers fill groups that share a scale in MXFP4."""
    return head_dim % GROUP_OF_4_BITS == 0


def spec_of(ratio: int, indexing: Indexing) -> CompressedKeys:
    """What a layer keeps of them, of `ratio` tokens each."""
    return CompressedKeys(ratio=ratio, head_dim=indexing.head_dim, mxfp4=indexing.mxfp4)


def formats(config: ModelConfig) -> tuple[str, ...]:
    """Those that the engine has for this model; none for one without an indexer."""
    compressed, latent = config.compressed_attention, config.latent_attention
    indexings = [mixer.indexing for mixer in (compressed, latent) if mixer is not None and mixer.indexing is not None]
    if not indexings:
        return ()
    return (FP8, MXFP4) if compressed is not None and fits(indexings[0].head_dim) else (FP8,)


def published(config: ModelConfig) -> str:
    """What the family's own code rounds them to; "" for a model without an indexer."""
    compressed = config.compressed_attention
    if compressed is not None and compressed.indexing is not None and compressed.indexing.mxfp4:
        return MXFP4
    return FP8 if formats(config) else ""


def with_index_keys(config: ModelConfig, wanted: str) -> ModelConfig:
    """The model with keys in a format of `formats`; "auto" leaves it as it is published."""
    if wanted not in formats(config):
        return config
    return structs.replace(config, layers=tuple(_with_keys(layer, wanted == MXFP4) for layer in config.layers))


def _with_keys(layer: Layer, mxfp4: bool) -> Layer:
    match layer.mixer:
        case CompressedAttention(indexing=Indexing() as indexing) as mixer:
            indexing = structs.replace(indexing, mxfp4=mxfp4)
            mixer = structs.replace(mixer, indexing=indexing)
            return structs.replace(layer, mixer=mixer, index=spec_of(mixer.ratio, indexing))
        case _:
            return layer
