"""Qwen2 and Qwen2.5: biases on q, k and v, and a sliding window in the layers that the config names."""

from __future__ import annotations

from appliance.models.layers.decoder import Decoder


class Qwen2ForCausalLM(Decoder):
    """The biases come with the config (`attention_bias`); the window holds where `layer_types` says so."""
