"""Every op, with its backends in order of preference. Imports no torch: backends are named, not loaded."""

from __future__ import annotations

from collections.abc import Mapping

from kernels import faults
from kernels import vllm_backends as vllm
from kernels.context import Context
from kernels.cpu.library import PRODUCTS
from kernels.deepseek_v4_ops import (
    COMPRESSED_ATTENTION,
    COMPRESSOR,
    GROUPED_LINEAR,
    INDEX_QUERY,
    MHC_HEAD,
    MHC_POST,
    MHC_PRE,
    WINDOW_ENTRIES,
)
from kernels.forms import FLASHINFER, FLOATS, HALVES, cpp, flashinfer, torch, triton
from kernels.mla_attention import SHAPES
from kernels.selection import Backend, Condition, Op

_LATENT = Condition(
    "latent_shape",
    one_of=SHAPES,
    says="has kernels only for the latents of DeepSeek V2 and V3 and of GLM 4.7 Flash",
)
_INDEX_KEYS = Condition("index_head_dim", one_of=(128,))
_TURNING_KEYS = Condition("latent_rope_dim", one_of=(64,))

# Two numbers for each of these heads lie behind the channels of a token.
_GATES_OF_16_BYTES = Condition("gated_delta_value_heads", multiple_of=4)


def _keeps_keys_and_values(context: Context) -> bool:
    return not (context.latent_attention or context.compressed_attention)


def _has_gated_delta_layers(context: Context) -> bool:
    return context.gated_delta_head_dim > 0


EMBEDDING = Op(
    "embedding",
    (
        triton(
            "kernels.embedding.triton:embedding",
            conditions=(Condition("hidden_size", multiple_of=8),),
            variants="kernels.embedding.variants:variants",
        ),
        torch("kernels.embedding.reference:embedding"),
    ),
)
RMS_NORM = Op(
    "rms_norm",
    (
        triton(
            "kernels.rms_norm.triton:rms_norm",
            conditions=(
                Condition("hidden_size", multiple_of=8),
                Condition("head_dim", multiple_of=8),
                Condition("latent_query_rank", multiple_of=8),
                Condition("row", multiple_of=8),
                Condition("widest_norm", at_most=16384),
            ),
            variants="kernels.rms_norm.variants:variants",
        ),
        flashinfer(
            "kernels.rms_norm.flashinfer:rms_norm",
            conditions=(
                Condition("hidden_size", multiple_of=8),
                Condition("head_dim", multiple_of=8),
                Condition("latent_query_rank", multiple_of=8),
                Condition("norm_offset", one_of=(0,), says="has no form for weights to which an offset is added"),
            ),
            modules="kernels.rms_norm.modules:modules",
        ),
        # Torch's in float32 rounds as the published models do, which is what their logits are held to.
        cpp("kernels.rms_norm.cpp:rms_norm", dtypes=("bfloat16",)),
        torch("kernels.rms_norm.reference:rms_norm"),
    ),
)
ROTARY_CACHE = Op(
    "rotary_cache",
    (
        triton(
            "kernels.rotary_cache.triton:rotary_cache",
            kv_cache_dtypes=(*HALVES, "float8_e4m3fn"),
            conditions=(
                Condition("head_dim", multiple_of=8),
                Condition("head_dim", at_most=256),
                Condition("rotary_dim", multiple_of=16),
            ),
            variants="kernels.rotary_cache.variants:variants",
        ),
        cpp(
            "kernels.rotary_cache.cpp:rotary_cache",
            kv_cache_dtypes=("float32", "bfloat16"),
            conditions=(Condition("rotary_dim", multiple_of=2),),
        ),
        torch("kernels.rotary_cache.reference:rotary_cache", captured=False),
    ),
    needed=_keeps_keys_and_values,
)
LATENT_CACHE = Op(
    "latent_cache",
    (
        triton(
            "kernels.latent_cache.triton:latent_cache",
            kv_cache_dtypes=HALVES,
            conditions=(_LATENT, Condition("latent_query_rank", multiple_of=8)),  # the latents of a token are one row
            variants="kernels.latent_cache.variants:variants",
        ),
        torch("kernels.latent_cache.reference:latent_cache", kv_cache_dtypes=FLOATS, captured=False),
    ),
    needed=lambda context: context.latent_attention,
)
GATED_ACTIVATION = Op(
    "gated_activation",
    (
        triton(
            "kernels.gated_activation.triton:gated_activation",
            conditions=(Condition("gated_width", multiple_of=8),),
            variants="kernels.gated_activation.variants:variants",
        ),
        cpp(
            "kernels.gated_activation.cpp:gated_activation",
            conditions=(Condition("activation", one_of=("silu", "gelu_tanh")),),
        ),
        torch("kernels.gated_activation.reference:gated_activation"),
    ),
    needed=lambda context: context.dense_layers or context.shared_intermediate_size > 0,  # experts end with their own
)
PAGED_ATTENTION = Op(
    "paged_attention",
    (
        triton(
            "kernels.paged_attention.triton:paged_attention",
            kv_cache_dtypes=(*HALVES, "float8_e4m3fn"),
            head_dims=(64, 96, 128, 256),
            variants="kernels.paged_attention.variants:variants",
        ),
        flashinfer(
            "kernels.paged_attention.flashinfer:paged_attention",
            kv_cache_dtypes=(*HALVES, "float8_e4m3fn"),
            head_dims=(64, 128, 256),
            lacks=("attention_sinks",),
            modules="kernels.paged_attention.modules:modules",
            preferred_on=((9, 0),),
            faults=(faults.FLASHINFER_PLANS_EACH_STEP,),
        ),
        cpp(
            "kernels.paged_attention.cpp:paged_attention",
            kv_cache_dtypes=("float32", "bfloat16"),
            conditions=(Condition("head_dim", multiple_of=32), Condition("head_dim", at_most=256)),
        ),
        torch("kernels.paged_attention.reference:paged_attention", captured=False),
        *vllm.PAGED_ATTENTION,
    ),
    setting="attention",
    needed=_keeps_keys_and_values,
    absent="attention over keys and values",
)
CAUSAL_CONV = Op(
    "causal_conv",
    (
        triton(
            "kernels.causal_conv.triton:causal_conv",
            conditions=(
                Condition("conv_width", one_of=(4,)),
                Condition("gated_delta_head_dim", multiple_of=8),
                Condition("gated_delta_value_dim", multiple_of=8),
                _GATES_OF_16_BYTES,
            ),
            variants="kernels.causal_conv.variants:variants",
        ),
        torch("kernels.causal_conv.reference:causal_conv", captures_prefills=False),
    ),
    needed=_has_gated_delta_layers,
)
DELTA_RULE = Op(
    "delta_rule",
    (
        triton(
            "kernels.delta_rule.triton:delta_rule",
            conditions=(
                Condition("gated_delta_head_dim", one_of=(64, 128)),
                Condition("gated_delta_value_dim", multiple_of=8),
            ),
            variants="kernels.delta_rule.variants:variants",
        ),
        Backend("flashinfer", devices=("cuda",), libraries=(FLASHINFER,), faults=(faults.FLASHINFER_GDN_NOT_CAST,)),
        torch("kernels.delta_rule.reference:delta_rule", captures_prefills=False),
        *vllm.DELTA_RULE,
    ),
    setting="gdn-prefill",
    needed=_has_gated_delta_layers,
    absent="gated delta layers",
)
GATED_NORM = Op(
    "gated_norm",
    (
        triton(
            "kernels.gated_norm.triton:gated_norm",
            conditions=(
                Condition("gated_delta_value_dim", multiple_of=8),
                Condition("gated_delta_value_dim", at_most=256),
                _GATES_OF_16_BYTES,
            ),
            variants="kernels.gated_norm.variants:variants",
        ),
        torch("kernels.gated_norm.reference:gated_norm"),
    ),
    needed=_has_gated_delta_layers,
)
MLA_ATTENTION = Op(
    "mla_attention",
    (
        triton(
            "kernels.mla_attention.triton:mla_attention",
            kv_cache_dtypes=HALVES,
            conditions=(_LATENT,),
            variants="kernels.mla_attention.variants:variants",
            captures_prefills=False,
        ),
        torch("kernels.mla_attention.reference:mla_attention", kv_cache_dtypes=FLOATS, captured=False),
        *vllm.MLA_ATTENTION,
    ),
    setting="attention",
    needed=lambda context: context.latent_attention and (not context.sparse_attention or context.dense_prefills),
    absent="latent attention over all tokens",
)
INDEX_CACHE = Op(
    "index_cache",
    (
        triton(
            "kernels.index_cache.triton:index_cache",
            kv_cache_dtypes=HALVES,
            conditions=(_INDEX_KEYS, _TURNING_KEYS),
            variants="kernels.index_cache.variants:variants",
        ),
        torch("kernels.index_cache.reference:index_cache", kv_cache_dtypes=FLOATS, captured=False),
    ),
    needed=lambda context: context.sparse_attention,
)
INDEXER = Op(
    "indexer",
    (
        triton(
            "kernels.indexer.triton:indexer",
            kv_cache_dtypes=HALVES,
            conditions=(
                _INDEX_KEYS,
                Condition("index_heads", one_of=(32, 64)),
            ),
            variants="kernels.indexer.variants:variants",
            captures_prefills=False,
        ),
        torch("kernels.indexer.reference:indexer", kv_cache_dtypes=FLOATS, captured=False),
    ),
    needed=lambda context: context.sparse_attention or (context.compressed_attention and context.index_heads > 0),
)
SPARSE_MLA = Op(
    "sparse_mla",
    (
        triton(
            "kernels.sparse_mla.triton:sparse_mla",
            kv_cache_dtypes=HALVES,
            conditions=(_LATENT,),
            variants="kernels.sparse_mla.variants:variants",
        ),
        torch("kernels.sparse_mla.reference:sparse_mla", kv_cache_dtypes=FLOATS, captured=False),
        *vllm.SPARSE_MLA,
    ),
    setting="sparse-mla",
    needed=lambda context: context.sparse_attention,
    absent="sparse latent attention",
)
LINEAR = Op(
    "linear",
    (
        triton(
            "kernels.linear.triton:linear",
            min_capability=(9, 0),
            conditions=(Condition("row", multiple_of=16),),
            variants="kernels.linear.variants:variants",
        ),
        cpp(
            "kernels.linear.cpp:linear",
            dtypes=("bfloat16",),
            conditions=(Condition("row", multiple_of=2),),
            cpu_features={"bfloat16": (("avx512_bf16", "avx512bw", "avx512vl", "avx512dq"),)},
            libraries=(PRODUCTS,),
            prepare="kernels.linear.cpp:prepare",
        ),
        Backend(
            "onednn",
            "kernels.linear.onednn:linear",
            devices=("cpu",),
            dtypes=("float32", "bfloat16"),
            # What torch's `_is_mkldnn_bf16_supported` asks: x86's two kinds, and ARM's.
            cpu_features={"bfloat16": (("avx512bw", "avx512vl", "avx512dq"), ("avx_ne_convert",), ("bf16",))},
            prepare="kernels.linear.onednn:prepare",
        ),
        torch("kernels.linear.reference:linear"),
    ),
)
FP8_LINEAR = Op(
    "fp8_linear",
    (
        triton(
            "kernels.fp8_linear.triton:fp8_linear",
            conditions=(
                Condition("hidden_size", multiple_of=16),
                Condition("intermediate_size", multiple_of=16),
                Condition("row", multiple_of=16),
                Condition("grouped_row", multiple_of=128),
                Condition("fp8_blocks", one_of=((128, 128),), says="supports only scales of 128 x 128 blocks"),
            ),
            variants="kernels.fp8_linear.variants:variants",
        ),
        torch("kernels.fp8_linear.reference:fp8_linear"),
        *vllm.FP8_LINEAR,
    ),
    setting="linear",
    needed=lambda context: context.fp8_blocks is not None,
    absent="layers in block-scaled FP8",
)
MOE_ROUTING = Op(
    "moe_routing",
    (
        Backend(
            "triton",
            "kernels.moe_routing.triton:moe_routing",
            devices=("cuda",),
            dtypes=FLOATS,
            min_capability=(8, 0),
            conditions=(
                Condition("num_experts", at_most=512),
                Condition("experts_per_token", at_most=16),
                Condition("num_expert_groups", at_most=32),
            ),
            variants="kernels.moe_routing.variants:variants",
        ),
        torch("kernels.moe_routing.reference:moe_routing"),
        *vllm.MOE_ROUTING,
    ),
    needed=lambda context: context.num_experts > 0,
)
FUSED_MOE = Op(
    "fused_moe",
    (
        triton(
            "kernels.fused_moe.triton:fused_moe",
            conditions=(
                Condition("hidden_size", multiple_of=16),
                Condition("moe_intermediate_size", multiple_of=16),
                Condition("fp8_expert_size", multiple_of=128),  # or gate and up would share scales
                Condition("mxfp4_expert_sizes", multiple_of=32),
                Condition("fp8_blocks", one_of=(None, (128, 128)), says="supports only scales of 128 x 128 blocks"),
                Condition("num_experts", at_most=512),
                Condition("experts_per_token", at_most=16),
            ),
            variants="kernels.fused_moe.variants:variants",
        ),
        torch("kernels.fused_moe.reference:fused_moe", captured=False),
        *vllm.FUSED_MOE,
    ),
    setting="moe",
    needed=lambda context: context.num_experts > 0 and not context.quantization,
    absent="mixture of experts in 16 bits or block-scaled FP8",
)
ALL_REDUCE = Op(
    "all_reduce",
    (
        triton(
            "kernels.all_reduce.triton:all_reduce",
            conditions=(
                Condition("workers", one_of=(2, 4, 8), says="has kernels only for 2, 4 and 8 GPUs"),
                Condition("hidden_size", multiple_of=8),
            ),
            variants="kernels.all_reduce.variants:variants",
        ),
        torch("kernels.all_reduce.reference:all_reduce"),
    ),
    needed=lambda context: context.workers > 1,
)
SAMPLING = Op(
    "sampling",
    (
        Backend(
            "triton",
            "kernels.sampling.triton:sample",
            devices=("cuda",),
            min_capability=(8, 0),
            conditions=(Condition("vocab_size", at_most=524288),),
            variants="kernels.sampling.variants:variants",
        ),
        Backend("flashinfer", devices=("cuda",), libraries=(FLASHINFER,), faults=(faults.FLASHINFER_SAMPLES_BY_PLACE,)),
        Backend("torch", "kernels.sampling.reference:sample"),
    ),
)

OPS: tuple[Op, ...] = (
    EMBEDDING,
    RMS_NORM,
    ROTARY_CACHE,
    LATENT_CACHE,
    PAGED_ATTENTION,
    MLA_ATTENTION,
    INDEX_CACHE,
    INDEXER,
    SPARSE_MLA,
    MHC_PRE,
    MHC_POST,
    MHC_HEAD,
    WINDOW_ENTRIES,
    COMPRESSOR,
    INDEX_QUERY,
    COMPRESSED_ATTENTION,
    GROUPED_LINEAR,
    CAUSAL_CONV,
    DELTA_RULE,
    GATED_NORM,
    LINEAR,
    FP8_LINEAR,
    GATED_ACTIVATION,
    MOE_ROUTING,
    FUSED_MOE,
    ALL_REDUCE,
    SAMPLING,
    vllm.DEEP_GEMM,
)


def backend_names(setting: str) -> tuple[str, ...]:
    """Every backend, of either engine, that a profile can name under `backends.<setting>`."""
    return tuple(dict.fromkeys(backend.name for op in OPS if op.setting == setting for backend in op.backends))


def engines_of(setting: str, name: str) -> tuple[str, ...]:
    """The engines with a backend of that name for the setting."""
    backends = (backend for op in OPS if op.setting == setting for backend in op.backends if backend.name == name)
    return tuple(dict.fromkeys(backend.engine for backend in backends))


def graphs_hold_prefills(backends: Mapping[str, str]) -> bool:
    """Whether CUDA graphs can hold steps with prompts by these backends of the native engine, op -> backend."""
    chosen = (backend for op in OPS for backend in op.of("native") if backends.get(op.name) == backend.name)
    return all(backend.captured and backend.captures_prefills for backend in chosen)
