"""Qwen3, dense: like Qwen2, without the biases and with each head of q and k normalised."""

from __future__ import annotations

from appliance.models.layers.decoder import DenseDecoder


class Qwen3ForCausalLM(DenseDecoder):
    """The norms come with the config (`qk_norm`)."""
