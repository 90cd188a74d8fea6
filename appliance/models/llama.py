"""Llama 1 to 3 and the many checkpoints of the same shape."""

from __future__ import annotations

from appliance.models.layers.decoder import Decoder


class LlamaForCausalLM(Decoder):
    """The decoder as it stands; biases, tied embeddings and rotary scaling follow the checkpoint's config."""
