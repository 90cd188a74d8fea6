"""Qwen3.5-MoE: Qwen3.5 with a mixture of experts in every layer, beside one expert that all tokens go through."""

from __future__ import annotations

from typing import Any

from appliance.checkpoint.experts import ExpertFamily
from appliance.checkpoint.families.decoder import PARTS
from appliance.checkpoint.families.qwen3_5 import SeeingDecoder
from appliance.checkpoint.fields import Fields


class SparseSeeingDecoder(SeeingDecoder, frozen=True, kw_only=True):
    def defaults(self, fields: Fields) -> dict[str, Any]:
        """These configs have no size of a dense layer."""
        shared = fields.integer("shared_expert_intermediate_size", 1, 1 << 22)
        return super().defaults(fields) | {"intermediate_size": shared}


FAMILY = SparseSeeingDecoder(
    model_type="qwen3_5_moe",
    experts=ExpertFamily(block="mlp", parts=PARTS, inner="moe_intermediate_size"),
)
