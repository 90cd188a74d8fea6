"""Mixtral: Mistral's decoder, with a mixture of experts in every layer."""

from __future__ import annotations

from appliance.models.layers.decoder import Decoder


class MixtralForCausalLM(Decoder):
    """Softmax over all experts, the chosen ones' weights divided by their sum."""
