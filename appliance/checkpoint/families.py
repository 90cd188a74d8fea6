"""The model families that the engine runs, a row each: what its architecture fixes and what it leaves to its config."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import msgspec

from appliance.checkpoint.experts import ExpertFamily


class Family(msgspec.Struct, frozen=True, kw_only=True):
    """What an architecture fixes or leaves to its config. A bias of None is what `attention_bias` or `mlp_bias` says;
    `head_dim` 0 means hidden_size / num_attention_heads where the config has no head_dim."""

    model_type: str
    qkv_bias: bool | None = False
    output_bias: bool | None = False
    mlp_bias: bool | None = False
    qk_norm: str = ""  # as in ModelConfig
    head_dim: int = 0
    rope_theta: float = 10_000.0
    rms_norm_eps: float = 1e-6
    # Where a sliding window is on: in every layer ("all"), in every layer if use_sliding_window ("switched"), or then
    # only above max_window_layers ("upper").
    sliding: str = ""
    sliding_window: int | None = 4096  # where the config has no such key; an explicit null turns the window off
    experts: ExpertFamily | None = None


_LLAMA_PARTS: Final = ("gate_proj", "up_proj", "down_proj")
_MIXTRAL_PARTS: Final = ("w1", "w3", "w2")
FAMILIES: Final[Mapping[str, Family]] = {
    "LlamaForCausalLM": Family(model_type="llama", qkv_bias=None, output_bias=None, mlp_bias=None),
    "MistralForCausalLM": Family(model_type="mistral", sliding="all"),
    "Qwen2ForCausalLM": Family(model_type="qwen2", qkv_bias=True, sliding="upper"),
    "Qwen3ForCausalLM": Family(
        model_type="qwen3", qkv_bias=None, output_bias=None, qk_norm="head", head_dim=128, sliding="upper"
    ),
    "MixtralForCausalLM": Family(
        model_type="mixtral",
        rope_theta=1e6,
        rms_norm_eps=1e-5,
        sliding="all",
        sliding_window=None,
        experts=ExpertFamily(block="block_sparse_moe", parts=_MIXTRAL_PARTS),
    ),
    "Qwen3MoeForCausalLM": Family(
        model_type="qwen3_moe",
        qkv_bias=None,
        output_bias=None,
        qk_norm="head",
        sliding="switched",
        experts=ExpertFamily(
            block="mlp", parts=_LLAMA_PARTS, inner="moe_intermediate_size", renormalise=None, every_layer=False
        ),
    ),
    "MiniMaxM2ForCausalLM": Family(
        model_type="minimax_m2",
        qk_norm="all",
        head_dim=128,
        rope_theta=5e6,
        experts=ExpertFamily(block="block_sparse_moe", parts=_MIXTRAL_PARTS, scoring="sigmoid", selection_bias=True),
    ),
}
