"""MiniMax-M2: experts chosen by sigmoid scores and a learned bias, q and k normalised over all heads together, and
rotary positions on a part of each head."""

from __future__ import annotations

from appliance.models.layers.decoder import Decoder


class MiniMaxM2ForCausalLM(Decoder):
    """Experts are chosen from all at once: its configs say `n_group` 0 or nothing."""
