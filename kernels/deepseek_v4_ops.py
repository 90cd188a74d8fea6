"""The ops that only DeepSeek V4 has, for compressed entries and residual streams. Part of the catalogue."""

from __future__ import annotations

from kernels.context import Context
from kernels.forms import FLOATS, HALVES, torch, triton
from kernels.selection import Condition, Op


def _has_compressed_attention(context: Context) -> bool:
    return context.compressed_attention


def _has_residual_streams(context: Context) -> bool:
    return context.residual_streams > 1


_STREAMS = (Condition("residual_streams", one_of=(2, 4)), Condition("hidden_size", multiple_of=8))


def _of_connections(op: str) -> Op:
    return Op(
        op,
        (
            triton(f"kernels.{op}.triton:{op}", conditions=_STREAMS, variants=f"kernels.{op}.variants:variants"),
            torch(f"kernels.{op}.reference:{op}"),
        ),
        needed=_has_residual_streams,
    )


MHC_PRE, MHC_POST, MHC_HEAD = (_of_connections(op) for op in ("mhc_pre", "mhc_post", "mhc_head"))
_ENTRIES = (
    Condition("head_dim", one_of=(512,)),
    Condition("rotary_dim", one_of=(64,)),
)  # as published models have them
_COMPRESSED_KEYS = (Condition("index_head_dim", one_of=(0, 128)),)  # where there are any
WINDOW_ENTRIES = Op(
    "window_entries",
    (
        triton(
            "kernels.window_entries.triton:window_entries",
            conditions=(*_ENTRIES, Condition("latent_query_rank", multiple_of=8)),  # entries lie behind the latents
            variants="kernels.window_entries.variants:variants",
        ),
        torch("kernels.window_entries.reference:window_entries"),
    ),
    needed=_has_compressed_attention,
)
COMPRESSOR = Op(
    "compressor",
    (
        triton(
            "kernels.compressor.triton:compressor",
            kv_cache_dtypes=HALVES,
            conditions=(*_ENTRIES, *_COMPRESSED_KEYS),
            variants="kernels.compressor.variants:variants",
            captures_prefills=False,  # tokens of padding would become entries of a block that is a sequence's
        ),
        torch("kernels.compressor.reference:compressor", kv_cache_dtypes=FLOATS, captured=False),
    ),
    needed=_has_compressed_attention,
)
INDEX_QUERY = Op(
    "index_query",
    (
        triton(
            "kernels.index_query.triton:index_query",
            kv_cache_dtypes=HALVES,
            conditions=(*_COMPRESSED_KEYS, Condition("rotary_dim", one_of=(64,))),
            variants="kernels.index_query.variants:variants",
        ),
        torch("kernels.index_query.reference:index_query"),
    ),
    needed=lambda context: context.compressed_attention and context.index_heads > 0,
)
COMPRESSED_ATTENTION = Op(
    "compressed_attention",
    (
        triton(
            "kernels.compressed_attention.triton:compressed_attention",
            kv_cache_dtypes=HALVES,
            conditions=(*_ENTRIES, Condition("window", one_of=(128,))),
            variants="kernels.compressed_attention.variants:variants",
        ),
        torch("kernels.compressed_attention.reference:compressed_attention", kv_cache_dtypes=FLOATS, captured=False),
    ),
    setting="attention",
    needed=_has_compressed_attention,
    absent="attention over compressed entries",
)
GROUPED_LINEAR = Op(  # `fp8_linear` has groups, too
    "grouped_linear",
    (torch("kernels.grouped_linear.reference:grouped_linear"),),
    needed=lambda context: context.grouped_products,
)
