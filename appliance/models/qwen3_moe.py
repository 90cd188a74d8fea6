"""Qwen3-MoE: Qwen3's attention, and a mixture of experts in the layers that the config names."""

from __future__ import annotations

from appliance.models.layers.decoder import Decoder


class Qwen3MoeForCausalLM(Decoder):
    """`decoder_sparse_step` and `mlp_only_layers` say which layers are sparse, `norm_topk_prob` whether a token's
    weights are divided by their sum."""
