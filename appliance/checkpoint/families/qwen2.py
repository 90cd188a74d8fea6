"""Qwen2 and Qwen2.5: biases on q, k and v, and a sliding window in the layers that the config names."""

from __future__ import annotations

from appliance.checkpoint.families.decoder import Decoder
from appliance.checkpoint.families.windows import in_upper_layers

FAMILY = Decoder(model_type="qwen2", qkv_bias=True, windows=in_upper_layers)
