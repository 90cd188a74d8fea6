"""Mistral: Llama's decoder, with a sliding window in every layer where the config has one."""

from __future__ import annotations

from appliance.models.layers.decoder import Decoder


class MistralForCausalLM(Decoder):
    """`sliding_window` of the config holds for all layers; null means full attention."""
