"""GLM 5, 5.1 and 5.2: DeepSeek V3.2's layers, whose indexers turn neighbouring pairs; most of 5.2's layers share the
indexer of one before them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from appliance.checkpoint.families.deepseek_v3 import EXPERTS
from appliance.checkpoint.families.deepseek_v32 import DeepseekV32


class GlmMoeDsa(DeepseekV32, frozen=True, kw_only=True):
    @property
    def defaults(self) -> Mapping[str, Any]:
        return {**super().defaults, "n_group": 1, "topk_group": 1, "index_n_heads": 32}


FAMILY = GlmMoeDsa(
    model_type="glm_moe_dsa",
    qkv_bias=None,
    output_bias=None,
    experts=EXPERTS,
    rms_norm_eps=1e-5,
    interleaved=True,
)
