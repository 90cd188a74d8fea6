"""What a choice of backends asks of any decoder's config.json, also of one that only the vllm engine runs."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import msgspec

from appliance.checkpoint.config import read_architecture
from appliance.checkpoint.families import family_of
from appliance.checkpoint.fields import Fields
from appliance.checkpoint.json_file import read_object

_MOST: Final = 1 << 24
_EXPERTS: Final = ("n_routed_experts", "num_local_experts", "num_experts", "moe_num_experts")
# Model types that only vLLM runs whose routers take the sigmoid where the config does not say so.
_SIGMOID: Final = frozenset({"glm4_moe", "kimi_k2"})
_SINKS: Final = frozenset({"gpt_oss"})


class Outline(msgspec.Struct, frozen=True, kw_only=True):
    """`shape` holds fields of `kernels.context.Context`; `dtype` is the checkpoint's own."""

    architecture: str
    dtype: str
    shape: dict[str, Any]


def read_outline(folder: Path) -> Outline:
    """Raises CheckpointError where config.json is missing or cannot be understood."""
    architecture = read_architecture(folder)
    fields = Fields(folder / "config.json", read_object(folder / "config.json", "config"))
    # A model that also sees or hears keeps its decoder's shape one level down.
    decoder = fields.inside("text_config") if fields.mapping("text_config") else fields
    family = family_of(architecture)
    scoring = family.scoring if family else ""
    return Outline(architecture=architecture, dtype=_dtype(decoder, fields), shape=_shape(decoder, fields, scoring))


def _shape(fields: Fields, whole: Fields, scoring: str) -> dict[str, Any]:
    """`scoring` is how the family's routers score experts, where the native engine knows it."""
    hidden_size = fields.integer("hidden_size", 1, _MOST)
    heads = fields.integer("num_attention_heads", 1, _MOST)
    latent = fields.integer("kv_lora_rank", 0, _MOST, default=0)
    head_dim = fields.integer("head_dim", 1, _MOST, default=max(hidden_size // heads, 1))
    if latent:
        head_dim = latent + fields.integer("qk_rope_head_dim", 0, _MOST, default=0)
    model_type = fields.text("model_type", default="")
    scoring = "sigmoid" if model_type in _SIGMOID else scoring or "softmax"
    experts = next((fields.integer(name, 0, _MOST) for name in _EXPERTS if fields.given.get(name) is not None), 0)
    return {
        "head_dim": head_dim,
        "num_heads": heads,
        "num_kv_heads": fields.integer("num_key_value_heads", 1, _MOST, default=heads),
        "hidden_size": hidden_size,
        "intermediate_size": fields.integer("intermediate_size", 0, _MOST, default=0),
        "vocab_size": fields.integer("vocab_size", 1, _MOST, default=1),
        "sliding_window": fields.given.get("sliding_window") is not None,
        "attention_sinks": model_type in _SINKS,
        "latent_attention": latent > 0,
        "sparse_attention": latent > 0 and fields.integer("index_topk", 0, _MOST, default=0) > 0,
        "gated_delta_head_dim": fields.integer("linear_key_head_dim", 0, _MOST, default=0),
        **_quantization(whole if whole.mapping("quantization_config") else fields),
        "num_experts": experts,
        "experts_per_token": fields.integer("num_experts_per_tok", 0, _MOST, default=0),
        "moe_intermediate_size": fields.integer("moe_intermediate_size", 0, _MOST, default=0),
        "expert_scoring": fields.text("scoring_func", default=scoring),
        "num_expert_groups": fields.integer("n_group", 0, _MOST, default=0),
    }


def _dtype(fields: Fields, whole: Fields) -> str:
    given = next((f.given[name] for f in (fields, whole) for name in ("dtype", "torch_dtype") if f.given.get(name)), "")
    return str(given).removeprefix("torch.") if isinstance(given, str) and given else "bfloat16"


def _quantization(fields: Fields) -> dict[str, Any]:
    """Block-scaled FP8 by its blocks, anything else by its name."""
    if not fields.mapping("quantization_config"):
        return {}
    inner = fields.inside("quantization_config")
    method = inner.text("quant_method", default="an unnamed method")
    blocks = inner.given.get("weight_block_size")
    if method != "fp8" or blocks is None:
        return {"quantization": method}
    if not isinstance(blocks, list) or len(blocks) != 2 or not all(type(side) is int and side > 0 for side in blocks):
        inner.refuse("weight_block_size", "Must be a list of two sizes.")
    return {"fp8_blocks": (blocks[0], blocks[1])}
