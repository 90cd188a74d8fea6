"""The shape of a model, as `config.read_config` reads it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import msgspec

from appliance.checkpoint.cache_specs import CacheSpec, SlidingWindow
from appliance.checkpoint.experts import Experts
from appliance.checkpoint.quantization import BlockFp8

# `hidden_act` in the words of the op that computes it; "gelu_new" and similar names are the approximation with tanh.
ACTIVATIONS: Final[Mapping[str, str]] = {
    "silu": "silu",
    "swish": "silu",
    "gelu": "gelu",
    "gelu_new": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
}


class Attention(msgspec.Struct, frozen=True):
    """Softmax attention over the last `window` tokens; over all of them where that is None."""

    window: int | None = None


class Layer(msgspec.Struct, frozen=True, kw_only=True):
    """How a layer mixes tokens, and what it keeps of them."""

    mixer: Attention
    cache: CacheSpec


class ModelConfig(msgspec.Struct, frozen=True, kw_only=True):
    """A decoder's shape. `rope_scaling` is None for plain RoPE, otherwise a dict with `rope_type` always there;
    `layers` has an entry for each of the `num_hidden_layers`. `qk_norm` is "head" where each
    head of query and key is normalised by itself, "all" where all heads of a token are together, and otherwise "".
    `intermediate_size` is that of the dense layers; `experts` is None for a model without sparse ones."""

    architecture: str
    model_type: str
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_hidden_layers: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    hidden_act: str
    max_position_embeddings: int
    rms_norm_eps: float
    rope_theta: float
    rope_scaling: dict[str, Any] | None
    rotary_dim: int
    tie_word_embeddings: bool
    attention_bias: bool
    attention_output_bias: bool
    mlp_bias: bool
    qk_norm: str
    layers: tuple[Layer, ...]
    dtype: str | None
    bos_token_id: int | None
    eos_token_ids: tuple[int, ...]
    experts: Experts | None
    fp8: BlockFp8 | None

    @property
    def cache_specs(self) -> tuple[CacheSpec, ...]:
        """Of each layer."""
        return tuple(layer.cache for layer in self.layers)

    @property
    def has_windows(self) -> bool:
        return any(isinstance(spec, SlidingWindow) for spec in self.cache_specs)

    def is_sparse(self, layer: int) -> bool:
        """Whether that layer is a mixture of experts."""
        return self.experts is not None and layer in self.experts.layers

    @property
    def context_length(self) -> int:
        """The longest context that the model was made for: max_position_embeddings, times what RoPE scaling adds.

        Llama 3's scaling is already counted in max_position_embeddings; yarn's and linear's are not (as vLLM reads
        them). https://github.com/vllm-project/vllm/blob/v0.11.0/vllm/config/model.py `_get_and_verify_max_len`.
        """
        scaling = self.rope_scaling or {}
        if scaling.get("rope_type") not in ("linear", "yarn", "dynamic"):
            return self.max_position_embeddings
        base = self.max_position_embeddings
        if scaling["rope_type"] == "yarn":
            base = scaling.get("original_max_position_embeddings", base)
        return max(int(base * scaling["factor"]), self.max_position_embeddings)
