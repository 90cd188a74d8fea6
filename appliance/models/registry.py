"""Which class serves which architecture of `config.json`. A new family is a file and a row."""

from __future__ import annotations

from appliance.models.base import BuildContext, Model
from kernels.named import load

ARCHITECTURES: dict[str, str] = {
    "LlamaForCausalLM": "appliance.models.llama:LlamaForCausalLM",
    "MistralForCausalLM": "appliance.models.mistral:MistralForCausalLM",
    "Qwen2ForCausalLM": "appliance.models.qwen2:Qwen2ForCausalLM",
    "Qwen3ForCausalLM": "appliance.models.qwen3:Qwen3ForCausalLM",
    "MixtralForCausalLM": "appliance.models.mixtral:MixtralForCausalLM",
    "Qwen3MoeForCausalLM": "appliance.models.qwen3_moe:Qwen3MoeForCausalLM",
    "MiniMaxM2ForCausalLM": "appliance.models.minimax_m2:MiniMaxM2ForCausalLM",
}


def build(context: BuildContext) -> Model:
    """Allocate the model that `context.config` describes.

    Raises:
        ValueError: its architecture has no row here. Preflight says so before the engine is started.
    """
    architecture = context.config.architecture
    if architecture not in ARCHITECTURES:
        raise ValueError(f"{architecture} is not supported (supported: {', '.join(ARCHITECTURES)})")
    model: Model = load(ARCHITECTURES[architecture])(context)
    return model
