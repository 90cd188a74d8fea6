"""Qwen3, dense: like Qwen2, without the biases and with each head of q and k normalised."""

from __future__ import annotations

from appliance.checkpoint.families.decoder import Decoder
from appliance.checkpoint.families.windows import in_upper_layers

FAMILY = Decoder(
    model_type="qwen3", qkv_bias=None, output_bias=None, qk_norm="head", head_dim=128, windows=in_upper_layers
)
