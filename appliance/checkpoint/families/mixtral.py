"""Mixtral: Mistral's decoder, with a mixture of experts in every layer; the weights of a token's experts are divided by
their sum."""

from __future__ import annotations

from appliance.checkpoint.experts import ExpertFamily
from appliance.checkpoint.families.decoder import Decoder
from appliance.checkpoint.families.windows import in_every_layer

BLOCK, PARTS = "block_sparse_moe", ("w1", "w3", "w2")  # as its checkpoints call the experts' layer, and gate, up, down
FAMILY = Decoder(
    model_type="mixtral",
    rope_theta=1e6,
    rms_norm_eps=1e-5,
    windows=in_every_layer(default=None),
    experts=ExpertFamily(block=BLOCK, parts=PARTS, count="num_local_experts"),
)
