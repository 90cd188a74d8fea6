"""Embedding gather as one Triton kernel: each program copies a piece of one row."""

from __future__ import annotations

import functools

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels.dependent_launch import wait_for_previous
from kernels.embedding import variants
from kernels.launch import cdiv, launch
from kernels.variants import Variant


def embedding(token_ids: Tensor, table: Tensor) -> Tensor:
    """As `reference.embedding`, for bfloat16 and float16; rows are multiples of 8 long, and the table is contiguous."""
    tokens, size = token_ids.shape[0], table.shape[1]
    out = table.new_empty((tokens, size))
    if tokens:
        variant, chunks = _plan(table.dtype, size)
        launch(embedding_kernel, variant, (tokens * chunks,), token_ids, table, out, size // variants.UNIT)
    return out


@functools.cache
def _plan(dtype: torch.dtype, size: int) -> tuple[Variant, int]:
    """The variant, and how many programs share a row."""
    assert size % variants.UNIT == 0, f"rows of {size} are not a multiple of {variants.UNIT}"
    return variants.of(str(dtype).removeprefix("torch.")), cdiv(size, variants.BLOCK)


# Token ids may begin anywhere in a longer tensor of them.
@triton.jit(do_not_specialize=["size8"], do_not_specialize_on_alignment=["token_ids_ptr"])
def embedding_kernel(
    token_ids_ptr,  # [tokens]
    table_ptr,  # [vocabulary, size]
    out_ptr,  # [tokens, size]
    size8,
    BLOCK: tl.constexpr,
):
    wait_for_previous()
    size = size8 * 8
    chunks = tl.cdiv(size, BLOCK)
    token = (tl.program_id(0) // chunks).to(tl.int64)
    column = tl.program_id(0) % chunks * BLOCK + tl.arange(0, BLOCK)
    row = tl.load(token_ids_ptr + token)
    piece = tl.load(table_ptr + row * size + column, mask=column < size)
    tl.store(out_ptr + token * size + column, piece, mask=column < size)
