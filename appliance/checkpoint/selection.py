"""What the choice of backends depends on for a model; the same for preflight, explain, the cast and the engine."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

from appliance.checkpoint.model_config import ACTIVATIONS, CompressedAttention, ModelConfig
from appliance.checkpoint.quantization import BLOCK
from appliance.checkpoint.sites import has_groups_in_16_bits, places
from appliance.engines import engine_named
from kernels.catalogue import OPS, graphs_hold_prefills
from kernels.context import CastSummary, Context
from kernels.libraries import installed
from kernels.selection import chosen_names, explain, heaviest_names, names_by_place

# (device, dtype) with kernels that multiply by weights in FP8. Elsewhere weights are expanded when they are loaded:
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
    """Everything the choice depends on, for a model that passed preflight. `dtype` and `kv_cache_dtype` are torch's
    names; `cpu_features` is `Host.cpu_features` of the machine that computes."""
    experts, latent, delta = config.experts, config.latent_attention, config.gated_delta
    compressed = config.compressed_attention
    attention = latent or compressed
    shared, indexing = experts.shared if experts else None, attention.indexing if attention else None
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
        left_to_engine=device in engine_named(engine).one_backend_on,
        kv_cache_dtype=kv_cache_dtype,
        hidden_size=config.hidden_size,
        intermediate_size=config.intermediate_size,
        dense_layers=not all(map(config.is_sparse, range(config.num_hidden_layers))),
        vocab_size=config.vocab_size,
        rotary_dim=config.rotary_dim,
        norm_offset=config.norm_offset,
        qk_norm=config.qk_norm,
        sliding_window=config.has_windows,
        latent_attention=latent is not None,
        latent_query_rank=attention.query_rank or 0 if attention else 0,
        latent_rank=latent.kv_rank if latent else 0,
        latent_rope_dim=latent.rope_dim if latent else 0,
        latent_nope_dim=latent.nope_dim if latent else 0,
        latent_value_dim=latent.value_dim if latent else 0,
        sparse_attention=latent is not None and indexing is not None,
        dense_prefills=latent is not None and indexing is not None and engine_named(engine).dense_prefills,
        index_heads=indexing.num_heads if indexing else 0,
        index_head_dim=indexing.head_dim if indexing else 0,
        index_top_k=indexing.top_k if indexing else 0,
        index_interleaved=indexing.interleaved if indexing else False,
        index_ratio=compressed.ratio if compressed and indexing else 1,
        index_mxfp4=indexing.mxfp4 if indexing else False,
        compressed_attention=compressed is not None,
        grouped_products=has_groups_in_16_bits(config, keep_fp8=keeps_fp8(config, device, dtype)),
        window=compressed.window if compressed else 0,
        least_ratio=min(_ratios_of_all(config), default=0),
        residual_streams=config.connections.streams if config.connections else 1,
        gated_delta_head_dim=delta.key_dim if delta else 0,
        gated_delta_value_dim=delta.value_dim if delta else 0,
        gated_delta_key_heads=delta.num_key_heads if delta else 0,
        gated_delta_value_heads=delta.num_value_heads if delta else 0,
        conv_width=delta.conv_width if delta else 0,
        activation=ACTIVATIONS.get(config.hidden_act, config.hidden_act),
        fp8_blocks=(BLOCK, BLOCK) if keeps_fp8(config, device, dtype) else None,
        mxfp4_experts=config.fp8 is not None and config.fp8.fp4_experts and keeps_fp8(config, device, dtype),
        float32_products=compressed is not None or bool(experts and experts.router_dtype),
        num_experts=experts.num_experts if experts else 0,
        experts_per_token=experts.routing.top_k if experts else 0,
        moe_intermediate_size=experts.intermediate_size if experts else 0,
        shared_intermediate_size=shared.intermediate_size if shared else 0,
        expert_scoring=experts.routing.scoring if experts else "softmax",
        hash_routing=bool(experts and experts.hashed),
        num_expert_groups=experts.routing.num_groups if experts else 0,
    )


def _ratios_of_all(config: ModelConfig) -> Iterator[int]:
    """Of layers that attend to all of their compressed entries."""
    for layer in config.layers:
        mixer = layer.mixer
        if isinstance(mixer, CompressedAttention) and mixer.ratio and mixer.indexing is None:
            yield mixer.ratio


def chosen_fields(
    config: ModelConfig,
    device: str,
    wanted: Mapping[str, str] | None = None,
    wanted_at: Mapping[str, str] | None = None,
    **described: Any,
) -> dict[str, Any]:
    """`backends`, `places`, `keep_fp8` and `prefill_graphs` of an EngineConfig that is not made from a launch's plan:
    for one process, without CUDA graphs unless described otherwise, with the libraries installed here. `device` is
    torch's name, such as "cuda:0"; `wanted` is a profile's `backends`, and `wanted_at` its `site-backends`; `described`
    are arguments of `selection_context`."""
    here: dict[str, Any] = {"device": device.partition(":")[0], "cuda_graphs": False, "libraries": installed()}
    context = selection_context(config, **(here | described))
    found = explain(OPS, context, wanted, places(config, context), wanted_at)
    return {
        "backends": chosen_names(found),
        "places": names_by_place(found),
        "keep_fp8": context.fp8_blocks is not None,
        "prefill_graphs": graphs_hold_prefills(heaviest_names(found)),
    }
