"""MiniMax-M2: experts chosen by sigmoid scores and a learned bias, from all at once (its configs say `n_group` 0 or
nothing); q and k normalised over all heads together, and rotary positions on a part of each head."""

from __future__ import annotations

from appliance.checkpoint.experts import ExpertFamily
from appliance.checkpoint.families.decoder import Decoder
from appliance.checkpoint.families.mixtral import BLOCK, PARTS
from appliance.checkpoint.fields import Fields


def _qk_norm(fields: Fields) -> str:
    """Its configs say which; what else they might say no published model does."""
    if fields.text("qk_norm_type", default="per_layer") != "per_layer":
        fields.refuse("qk_norm_type", "The native engine only supports per_layer.")
    return "all" if fields.boolean("use_qk_norm", default=True) else ""


def _check(fields: Fields) -> None:
    """Keys for parts that no published model has, and that the engine does not have."""
    if fields.integer("shared_intermediate_size", 0, 1 << 22, default=0):
        fields.refuse("shared_intermediate_size", "The native engine does not support shared experts here.")
    kinds = fields.given.get("attn_type_list")
    if isinstance(kinds, list) and any(kind != 1 for kind in kinds):
        fields.refuse("attn_type_list", "The native engine only supports softmax attention (1).")


FAMILY = Decoder(
    model_type="minimax_m2",
    qk_norm=_qk_norm,
    head_dim=128,
    rope_theta=5e6,
    experts=ExpertFamily(block=BLOCK, parts=PARTS, count="num_local_experts", scoring="sigmoid", selection_bias=True),
    check=_check,
)
