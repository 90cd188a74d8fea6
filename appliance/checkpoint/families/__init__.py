"""The model families that the native engine runs: a file each, which says all that is known of one without torch, and a
row here.

A family's forward pass is the shared decoder's unless its description names another (`Family.forward`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from appliance.checkpoint.families.base import Family
from kernels.named import load

# config.json's architecture -> the file here that describes it.
FILES: Final[Mapping[str, str]] = {
    "LlamaForCausalLM": "llama",
    "MistralForCausalLM": "mistral",
    "Qwen2ForCausalLM": "qwen2",
    "Qwen3ForCausalLM": "qwen3",
    "MixtralForCausalLM": "mixtral",
    "Qwen3MoeForCausalLM": "qwen3_moe",
    "MiniMaxM2ForCausalLM": "minimax_m2",
    "DeepseekV3ForCausalLM": "deepseek_v3",
    "DeepseekV32ForCausalLM": "deepseek_v32",
    "DeepseekV4ForCausalLM": "deepseek_v4",
    "GlmMoeDsaForCausalLM": "glm_moe_dsa",
    "Qwen3NextForCausalLM": "qwen3_next",
    "Qwen3_5ForCausalLM": "qwen3_5",
    "Qwen3_5ForConditionalGeneration": "qwen3_5",
    "Qwen3_5MoeForCausalLM": "qwen3_5_moe",
    "Qwen3_5MoeForConditionalGeneration": "qwen3_5_moe",
}


def family_of(architecture: str) -> Family | None:
    """None for one that the native engine does not run."""
    if architecture not in FILES:
        return None
    family: Family = load(f"{__name__}.{FILES[architecture]}:FAMILY")
    return family
