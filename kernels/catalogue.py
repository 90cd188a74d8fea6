"""Every op, with its backends in order of preference. Imports no torch: the backends are named, not loaded."""

from __future__ import annotations

from kernels.selection import Backend, Op

_FLOATS = ("float32", "bfloat16", "float16")

EMBEDDING = Op("embedding", (Backend("torch", "kernels.embedding.reference:embedding", dtypes=_FLOATS),))
RMS_NORM = Op("rms_norm", (Backend("torch", "kernels.rms_norm.reference:rms_norm", dtypes=_FLOATS),))
ROTARY = Op("rotary", (Backend("torch", "kernels.rotary.reference:rotary", dtypes=_FLOATS),))
SILU_AND_MUL = Op("silu_and_mul", (Backend("torch", "kernels.silu_and_mul.reference:silu_and_mul", dtypes=_FLOATS),))
CACHE_WRITE = Op("cache_write", (Backend("torch", "kernels.cache_write.reference:cache_write", dtypes=_FLOATS),))
PAGED_ATTENTION = Op(
    "paged_attention",
    (Backend("torch", "kernels.paged_attention.reference:paged_attention", dtypes=_FLOATS),),
    setting="attention",
)
LINEAR = Op("linear", (Backend("torch", "kernels.linear.reference:linear", dtypes=_FLOATS),), setting="linear")
SAMPLING = Op("sampling", (Backend("torch", "kernels.sampling.reference:sample"),))

OPS: tuple[Op, ...] = (
    EMBEDDING,
    RMS_NORM,
    ROTARY,
    SILU_AND_MUL,
    CACHE_WRITE,
    PAGED_ATTENTION,
    LINEAR,
    SAMPLING,
)
