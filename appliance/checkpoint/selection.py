"""The question by which backends are chosen for a model, asked alike by preflight, explain, cast and the engine."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from appliance.checkpoint.model_config import ACTIVATIONS, ModelConfig
from appliance.checkpoint.quantization import BLOCK
from kernels.context import CastSummary, Context

# (device, dtype) with kernels that multiply by weights in FP8. Elsewhere they are multiplied out when they are loaded:
# that takes two to four times their memory, and saves doing it in every step.
KEEPS_FP8: Final = (("cuda", "bfloat16"), ("cuda", "float16"))


def keeps_fp8(config: ModelConfig, device: str, dtype: str) -> bool:
    """Whether block-scaled weights of this model stay so on a "cpu" or "cuda" device that computes in `dtype`."""
    return config.fp8 is not None and (device, dtype) in KEEPS_FP8


def selection_context(
    config: ModelConfig,
    *,
    device: str,
    capability: tuple[int, int] | None,
    dtype: str,
    kv_cache_dtype: str,
    cuda_graphs: bool,
    libraries: Mapping[str, str],
    cpu_features: tuple[str, ...] | None = None,
    cast: CastSummary | None = None,
    workers: int = 1,
    engine: str = "native",
) -> Context:
    """Everything that a choice depends on, for a model that preflight lets through. `dtype` and `kv_cache_dtype` are
    names of torch's; `cpu_features` is `Host.cpu_features` of the machine that computes."""
    experts = config.experts
    return Context(
        device=device,
        capability=capability,
        cpu_features=cpu_features,
        dtype=dtype,
        head_dim=config.head_dim,
        num_heads=config.num_attention_heads,
        num_kv_heads=config.num_key_value_heads,
        cuda_graphs=cuda_graphs,
        workers=workers,
        libraries=libraries,
        cast=cast,
        engine=engine,
        kv_cache_dtype=kv_cache_dtype,
        hidden_size=config.hidden_size,
        intermediate_size=config.intermediate_size,
        vocab_size=config.vocab_size,
        rotary_dim=config.rotary_dim,
        qk_norm=config.qk_norm,
        sliding_window=config.has_windows,
        activation=ACTIVATIONS.get(config.hidden_act, config.hidden_act),
        fp8_blocks=(BLOCK, BLOCK) if keeps_fp8(config, device, dtype) else None,
        num_experts=experts.num_experts if experts else 0,
        experts_per_token=experts.routing.top_k if experts else 0,
        moe_intermediate_size=experts.intermediate_size if experts else 0,
        expert_scoring=experts.routing.scoring if experts else "softmax",
        num_expert_groups=experts.routing.num_groups if experts else 0,
    )
