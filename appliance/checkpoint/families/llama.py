"""Llama 1 to 3 and the many checkpoints of the same shape: biases follow the config."""

from __future__ import annotations

from appliance.checkpoint.families.decoder import Decoder

FAMILY = Decoder(model_type="llama", qkv_bias=None, output_bias=None, mlp_bias=None)
