"""FlashInfer's attention modules: which of them a model needs, and how much workspace they take."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, NamedTuple

from kernels.context import Context
from kernels.modules import Module

HEAD_DIMS: Final = (64, 128, 256)
FP8: Final = "float8_e4m3fn"

_NAMES: Final = {"bfloat16": "bf16", "float16": "f16", FP8: "e4m3"}
_ATTENTION: Final = "flashinfer.jit.attention"
# Where few query heads share a key-value head, the units for vectors decode as fast as memory delivers; FlashInfer's
# kernel for them has no other group sizes than 1, 2, 3, 4 and 8.
_VECTOR_GROUPS: Final = (1, 2)
_HOPPER: Final = 90
_MIB: Final = 1 << 20
_MANY: Final = 1 << 16  # queries, as prefills have
# No GPU of the architectures that are cast has more multiprocessors (RTX PRO 6000: 188).
MOST_MULTIPROCESSORS: Final = 192


class Shape(NamedTuple):
    """What an attention module is compiled for."""

    dtype: str
    cache_dtype: str
    head_dim: int
    sliding_window: bool = False
    soft_cap: bool = False


def modules(arch: int, model: Context | None = None) -> Iterator[Module]:
    if model is None:
        shapes = [Shape("bfloat16", "bfloat16", head_dim) for head_dim in HEAD_DIMS]
        groups: tuple[int, ...] = (1, 8)  # one for each way to decode
    else:
        # A model with a sliding window usually has layers without one, too.
        shapes = [
            Shape(model.dtype, model.cache_dtype, model.head_dim, window, model.soft_cap)
            for window in ((False, True) if model.sliding_window else (False,))
        ]
        groups = (model.num_heads // model.num_kv_heads,)
    found = [decoding(shape, group) for shape in shapes for group in groups]
    found += [prefilling(shape, arch) for shape in shapes]
    yield from dict.fromkeys(found)


def decodes_by_vectors(group: int) -> bool:
    """Whether `group` query heads a key-value head are decoded without matrix units."""
    return group in _VECTOR_GROUPS


def prefills_by_hopper(shape: Shape, arch: int) -> bool:
    """Whether prefills take the kernel written for sm_90, which reads a cache of the query's dtype only."""
    return arch == _HOPPER and shape.cache_dtype == shape.dtype


def decoding(shape: Shape, group: int) -> Module:
    if not decodes_by_vectors(group):
        return _prefill(shape, hopper=False)
    arguments = _arguments(shape)
    return Module(
        "paged_attention",
        f"batch_decode_with_kv_cache_{_name(shape)}",
        f"{_ATTENTION}:gen_batch_decode_module",
        tuple(arguments.items()),
    )


def prefilling(shape: Shape, arch: int) -> Module:
    return _prefill(shape, hopper=prefills_by_hopper(shape, arch))


def workspace_bytes(context: Context, multiprocessors: int = MOST_MULTIPROCESSORS) -> int:
    """What the backend keeps on the GPU beside the cache, for the memory plan: room for partial results, and for each
    kind of layer two schedules of 8 MiB."""
    shape = Shape(context.dtype, context.cache_dtype, context.head_dim)
    group = context.num_heads // context.num_kv_heads
    hopper = prefills_by_hopper(shape, context.arch)
    kinds = 2 if context.sliding_window else 1
    partial = partial_bytes(group, context.head_dim, multiprocessors, prefills_too=not hopper)
    return partial + 2 * kinds * (8 * _MIB + _MIB // 4)


def partial_bytes(group: int, head_dim: int, multiprocessors: int, *, prefills_too: bool) -> int:
    """Of contexts that are divided among thread blocks, the partial results in float32.

    At most two blocks on each multiprocessor have a tile of rows each, for each of the `group` query heads that share a
    key-value head (`PrefillPlan` in FlashInfer's attention/scheduler.cuh); decoding by vectors has one row a block, and
    at most 32 blocks on a multiprocessor. The kernel for sm_90 divides no contexts.
    """
    rows = _tile_rows(_MANY if prefills_too else group, head_dim)
    blocks = max(2 * rows, 32) * multiprocessors
    return blocks * group * (head_dim + 1) * 4 + _MIB


def _tile_rows(queries: int, head_dim: int) -> int:
    """FlashInfer's choice for `queries` query heads times tokens of a sequence (`FA2DetermineCtaTileQ`)."""
    if queries > 64 and head_dim < 256:
        return 128
    return 64 if queries > 16 else 16


def _prefill(shape: Shape, *, hopper: bool) -> Module:
    return Module(
        "paged_attention",
        f"batch_prefill_with_kv_cache_{_name(shape)}_f16qk_False{'_sm90' if hopper else ''}",
        f"{_ATTENTION}:gen_batch_prefill_module",
        (("backend", "fa3" if hopper else "fa2"), *_arguments(shape).items(), ("use_fp16_qk_reduction", False)),
        headers=("curand_kernel.h",) if hopper else (),
    )


def _name(shape: Shape) -> str:
    query, cache = _NAMES[shape.dtype], _NAMES[shape.cache_dtype]
    return (
        f"dtype_q_{query}_dtype_kv_{cache}_dtype_o_{query}_dtype_idx_i32_head_dim_qk_{shape.head_dim}_head_dim_vo_"
        f"{shape.head_dim}_posenc_0_use_swa_{shape.sliding_window}_use_logits_cap_{shape.soft_cap}"
    )


def _arguments(shape: Shape) -> dict[str, str | int | bool]:
    return {
        "dtype_q": shape.dtype,
        "dtype_kv": shape.cache_dtype,
        "dtype_o": shape.dtype,
        "dtype_idx": "int32",
        "head_dim_qk": shape.head_dim,
        "head_dim_vo": shape.head_dim,
        "pos_encoding_mode": 0,  # positions are in the keys already
        "use_sliding_window": shape.sliding_window,
        "use_logits_soft_cap": shape.soft_cap,
    }
