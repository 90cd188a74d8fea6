"""Qwen3, dense: like Qwen2, without the biases and with each head of q and k normalised."""

from __future__ import annotations

from appliance.models.layers.decoder import Decoder


class Qwen3ForCausalLM(Decoder):
    """The norms come with the config (`qk_norm`)."""
