"""Cache write as one Triton kernel for keys and values together, with quantisation to 8 bits on the way."""

from __future__ import annotations

import functools

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels.cache_write import variants
from kernels.float8 import encode_e4m3
from kernels.launch import architecture, cdiv, launch
from kernels.variants import Variant


def cache_write(
    key: Tensor,
    value: Tensor,
    key_cache: Tensor,
    value_cache: Tensor,
    slot_mapping: Tensor,
    key_scale: float = 1.0,
    value_scale: float = 1.0,
) -> None:
    """As `reference.cache_write`, for bfloat16 and float16 into a cache of either or of float8_e4m3fn.

    kv_heads * head_dim and the strides between tokens are multiples of 8; the heads of a token are neighbours, and the
    caches contiguous.
    """
    tokens, heads, head_dim = key.shape
    if not tokens:
        return
    size = heads * head_dim
    key_stride, value_stride = key.stride(0), value.stride(0)
    variant, chunks = _plan(architecture(), key.dtype, key_cache.dtype, size, key_stride, value_stride)
    if variant.arguments[2] == "*u8":
        key_cache, value_cache = key_cache.view(torch.uint8), value_cache.view(torch.uint8)
    launch(
        cache_write_kernel, variant, (cdiv(tokens, variants.ROWS) * chunks,),
        key, value, key_cache, value_cache, slot_mapping, tokens, size // variants.UNIT,
        key_stride // variants.UNIT, value_stride // variants.UNIT, 1.0 / key_scale, 1.0 / value_scale,
    )  # fmt: skip


@functools.cache
def _plan(
    arch: int, dtype: torch.dtype, cache_dtype: torch.dtype, size: int, key_stride: int, value_stride: int
) -> tuple[Variant, int]:
    """The variant, and how many programs share a token."""
    for count in (size, key_stride, value_stride):
        assert count % variants.UNIT == 0, f"a width or stride of {count} is not a multiple of {variants.UNIT}"
    names = (str(dtype).removeprefix("torch."), str(cache_dtype).removeprefix("torch."))
    return variants.of(arch, *names), cdiv(size, variants.BLOCK)


# The slot mapping may begin anywhere in a longer tensor.
@triton.jit(
    do_not_specialize=[
        "tokens", "size8", "key_stride8", "value_stride8", "key_inverse_scale", "value_inverse_scale",
    ],
    do_not_specialize_on_alignment=["slot_mapping_ptr"],
)  # fmt: skip
def cache_write_kernel(
    key_ptr,  # [tokens, size], strided
    value_ptr,  # the same
    key_cache_ptr,  # [slots, size], contiguous
    value_cache_ptr,  # the same
    slot_mapping_ptr,  # [tokens]
    tokens,
    size8,
    key_stride8,
    value_stride8,
    key_inverse_scale,
    value_inverse_scale,
    ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    size = size8 * 8
    chunks = tl.cdiv(size, BLOCK)
    token = tl.program_id(0) // chunks * ROWS + tl.arange(0, ROWS)
    column = (tl.program_id(0) % chunks * BLOCK + tl.arange(0, BLOCK))[None, :]
    inside = (token < tokens)[:, None] & (column < size)
    slot = tl.load(slot_mapping_ptr + token, mask=token < tokens, other=-1)
    token = token.to(tl.int64)[:, None]
    key = tl.load(key_ptr + token * (key_stride8 * 8) + column, mask=inside, other=0.0)
    value = tl.load(value_ptr + token * (value_stride8 * 8) + column, mask=inside, other=0.0)
    target = slot[:, None] * size + column
    written = inside & (slot >= 0)[:, None]
    tl.store(key_cache_ptr + target, _encoded(key, key_inverse_scale, key_cache_ptr.dtype.element_ty), mask=written)
    tl.store(
        value_cache_ptr + target, _encoded(value, value_inverse_scale, value_cache_ptr.dtype.element_ty), mask=written
    )


@triton.jit
def _encoded(x, inverse_scale, TYPE: tl.constexpr):
    """`x` as the cache holds it."""
    if TYPE.primitive_bitwidth > 8:
        return x.to(TYPE)
    else:  # noqa: RET505 - Triton compiles what follows a return
        # NaN stays NaN, as in torch, so that a damaged model is noticed.
        x = tl.clamp(x.to(tl.float32) * inverse_scale, -448.0, 448.0, propagate_nan=tl.PropagateNan.ALL)
        return x.to(TYPE) if TYPE.is_floating() else encode_e4m3(x)
