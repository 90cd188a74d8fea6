"""Qwen3-MoE: Qwen3's attention, and a mixture of experts in the layers that `decoder_sparse_step` and
`mlp_only_layers` leave."""

from __future__ import annotations

from appliance.checkpoint.experts import ExpertFamily
from appliance.checkpoint.families.decoder import PARTS, Decoder
from appliance.checkpoint.families.windows import where_switched_on

FAMILY = Decoder(
    model_type="qwen3_moe",
    qkv_bias=None,
    output_bias=None,
    qk_norm="head",
    windows=where_switched_on,
    experts=ExpertFamily(block="mlp", parts=PARTS, inner="moe_intermediate_size", renormalise=None, every_layer=False),
)
