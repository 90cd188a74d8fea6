"""Mixture of experts in Triton: sort by expert, two grouped products, and the sum over each token's experts.

The first product computes gate and up together and applies the activation to what it holds in registers; the second
multiplies by the routing weights. A row's result does not depend on the other rows of its tile, and the sum is taken in
a fixed order, so that equal calls give equal results.
"""

from __future__ import annotations

import functools
from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels import float4
from kernels.dependent_launch import wait_for_previous
from kernels.fp8_linear import GROUP
from kernels.fp8_linear.rounded import Rounded, rows_of
from kernels.fp8_linear.triton import rounded
from kernels.fp8_linear.variants import activation_mode, has_fp8
from kernels.fused_moe import variants
from kernels.fused_moe.by_expert import Sorted
from kernels.fused_moe.mxfp4 import mxfp4_product_kernel, mxfp4_row_kernel
from kernels.fused_moe.products import fp8_product_kernel, plain_product_kernel
from kernels.fused_moe.sort import sort_by_expert
from kernels.fused_moe.variants import Tile
from kernels.launch import architecture, cdiv, launch

_plain_variant = functools.cache(variants.plain_product)
_fp8_variant = functools.cache(variants.fp8_product)
_mxfp4_variant = functools.cache(variants.mxfp4_product)
_sum_variant = functools.cache(variants.sum_of)


def fused_moe(
    x: Tensor | Rounded,
    weights: Tensor,
    expert_ids: Tensor,
    gate_up: Tensor,
    down: Tensor,
    gate_up_scale: Tensor | None = None,
    down_scale: Tensor | None = None,
    activation: str = "silu",
    limit: float | None = None,
    by_expert: Sorted | None = None,
    added: Tensor | None = None,
) -> Tensor:
    """As `reference.fused_moe`, for bfloat16 and float16, with H and N multiples of 16 (in FP8, N of 128; in
    MXFP4, both of 32).

    All tensors are contiguous. With weights in FP8 the activations of both products are rounded to FP8 from sm_89 on.
    """
    given, x = x, rows_of(x)
    (tokens, hidden), top_k = x.shape, expert_ids.shape[1]
    num_experts, size = gate_up.shape[0], gate_up.shape[1] // 2
    out = torch.empty_like(x)
    if not tokens:
        return out
    in_fp4 = gate_up.dtype == torch.uint8
    unit = float4.GROUP if in_fp4 else variants.UNIT
    assert hidden % unit == 0, f"a hidden size of {hidden}"
    assert size % (unit if in_fp4 or gate_up_scale is None else GROUP) == 0, f"experts of size {size}"
    assert gate_up.stride(0) < 1 << 31, "an expert of 2^31 weights"
    if in_fp4:
        tile = variants.mxfp4_tile_of(tokens * top_k, num_experts)
    else:
        tile = variants.tile_of(architecture(), gate_up_scale is not None, tokens * top_k, num_experts)
    summed = top_k > 1 or added is not None
    rows = x.new_empty(tokens * top_k, hidden) if summed else out
    if tile.block_m == 1:
        assert gate_up_scale is not None
        assert down_scale is not None
        inner = x.new_empty(tokens * top_k, size)
        mxfp4_rows(x, gate_up, gate_up_scale, expert_ids, weights, inner, tile, activation, limit)
        mxfp4_rows(inner, down, down_scale, expert_ids, weights, rows, tile, "", limit)
        if summed:
            add_up(rows, out, added)
        return out
    if by_expert is None:
        by_expert = sort_by_expert(expert_ids, num_experts, tile.block_m)
    assert by_expert.most == variants.most_blocks(tokens * top_k, num_experts, tile.block_m), "sorted for another tile"
    products = Products(by_expert, weights, tile, torch.inf if limit is None else limit)
    if gate_up_scale is None:
        products.plain(x, gate_up, down, rows, activation)
    elif in_fp4:
        assert down_scale is not None
        products.mxfp4(x, gate_up, gate_up_scale, down, down_scale, rows, activation)
    else:
        assert down_scale is not None
        products.fp8(given, gate_up, gate_up_scale, down, down_scale, rows, activation)
    if summed:
        add_up(rows, out, added)
    return out


class Products(NamedTuple):
    """The two grouped products of a batch. `weights` [T, k] are the routing weights; `limit` is the activation's."""

    pairs: Sorted
    weights: Tensor
    tile: Tile
    limit: float

    def plain(self, x: Tensor, gate_up: Tensor, down: Tensor, out: Tensor, activation: str) -> None:
        """`out` [T * k, H]: each token by each of its experts, weighted."""
        inner = x.new_empty(out.shape[0], down.shape[2])
        self.plain_product(x, gate_up, inner, activation)
        self.plain_product(inner, down, out, "")

    def fp8(
        self,
        given: Tensor | Rounded,
        gate_up: Tensor,
        gate_up_scale: Tensor,
        down: Tensor,
        down_scale: Tensor,
        out: Tensor,
        activation: str,
    ) -> None:
        """As `plain`. Where activations are given rounded, the first product rounds those of the second as it ends."""
        pairs, size = out.shape[0], down.shape[2]
        if activation_mode(architecture(), self.tile.block_m) == "rounded":
            x, x_scale = rounded(given)
            inner = torch.empty(pairs, size, dtype=x.dtype, device=x.device)
            inner_scale = torch.empty(size // GROUP, pairs, dtype=torch.float32, device=x.device)
        else:
            x = rows_of(given)
            inner = x.new_empty(pairs, size)
            x_scale = inner_scale = self.weights  # not read
        self.fp8_product(x, x_scale, gate_up, gate_up_scale, inner, inner_scale, _name(out), activation)
        self.fp8_product(inner, inner_scale, down, down_scale, out, self.weights, _name(out), "")

    def mxfp4(
        self,
        x: Tensor,
        gate_up: Tensor,
        gate_up_scale: Tensor,
        down: Tensor,
        down_scale: Tensor,
        out: Tensor,
        activation: str,
    ) -> None:
        """As `plain`."""
        inner = x.new_empty(out.shape[0], gate_up.shape[1] // 2)
        for a, b, scale, to, kind in (
            (x, gate_up, gate_up_scale, inner, activation),
            (inner, down, down_scale, out, ""),
        ):
            launch(
                mxfp4_product_kernel, _mxfp4_variant(_name(x), self.tile, kind),
                (self.pairs.most * cdiv(b.shape[1], self.tile.block_n),),
                a, b, scale.view(torch.uint8), *self.pairs, self.weights, to,
                to.shape[1] // variants.UNIT, b.shape[2] * 2 // float4.GROUP, self.weights.shape[1], self.limit,
            )  # fmt: skip

    def plain_product(self, a: Tensor, b: Tensor, out: Tensor, activation: str) -> None:
        """The first product with its activation, the second with ""."""
        order, blocks = self.pairs
        launch(
            plain_product_kernel, _plain_variant(_name(a), self.tile, activation),
            (self.pairs.most * cdiv(b.shape[1], self.tile.block_n),),
            a, b, order, blocks, self.weights, out,
            out.shape[1] // variants.UNIT, b.shape[2] // variants.UNIT, self.weights.shape[1], self.limit,
        )  # fmt: skip

    def fp8_product(
        self,
        a: Tensor,
        a_scale: Tensor,
        b: Tensor,
        b_scale: Tensor,
        out: Tensor,
        out_scale: Tensor,
        dtype: str,
        activation: str,
    ) -> None:
        """As `plain_product`, for a model in `dtype`."""
        arch, (order, blocks) = architecture(), self.pairs
        launch(
            fp8_product_kernel, _fp8_variant(arch, dtype, self.tile, activation),
            (self.pairs.most * cdiv(b.shape[1], 2 * self.tile.block_n),),
            a, a_scale, b if has_fp8(arch) else b.view(torch.uint8), b_scale, order, blocks, self.weights,
            out, out_scale, out.shape[1] // variants.UNIT, b.shape[2] // variants.UNIT, self.weights.shape[1],
            a.shape[0], out.shape[0], self.limit,
        )  # fmt: skip


def mxfp4_rows(
    a: Tensor,
    b: Tensor,
    b_scale: Tensor,
    expert_ids: Tensor,
    weights: Tensor,
    out: Tensor,
    tile: variants.Tile,
    activation: str,
    limit: float | None,
) -> None:
    """One of the two products of so few pairs that each is computed by itself, in the order of the tokens."""
    launch(
        mxfp4_row_kernel, _mxfp4_variant(_name(out), tile, activation),
        (out.shape[0] * cdiv(b.shape[1], tile.block_n),),
        a.view(torch.int32), b.view(torch.int32), b_scale.view(torch.uint8), expert_ids, weights, out,
        out.shape[1] // variants.UNIT, b.shape[2] * 2 // float4.GROUP, weights.shape[1],
        torch.inf if limit is None else limit,
    )  # fmt: skip


def add_up(rows: Tensor, out: Tensor, added: Tensor | None = None) -> None:
    """`out` [T, H]: the sum of each token's `rows` [T * k, H], and of what is `added`, contiguous [T, H]."""
    (tokens, hidden), top_k = out.shape, rows.shape[0] // out.shape[0]
    launch(
        sum_kernel, _sum_variant(_name(rows), variants.places_of(top_k)),
        (tokens * cdiv(hidden, variants.SUM_BLOCK),), rows, rows if added is None else added, out,
        hidden // variants.UNIT, top_k, int(added is not None),
    )  # fmt: skip


def _name(x: Tensor) -> str:
    return str(x.dtype).removeprefix("torch.")


@triton.jit(do_not_specialize=["hidden16", "top_k", "has_added"])
def sum_kernel(
    rows_ptr,  # [tokens, top_k, hidden]
    added_ptr,  # [tokens, hidden], or anything where has_added is 0
    out_ptr,  # [tokens, hidden]
    hidden16,
    top_k,
    has_added,
    PLACES: tl.constexpr,
    BLOCK: tl.constexpr,
):
    wait_for_previous()
    hidden = hidden16 * 16
    parts = tl.cdiv(hidden, BLOCK)
    token = (tl.program_id(0) // parts).to(tl.int64)
    column = tl.program_id(0) % parts * BLOCK + tl.arange(0, BLOCK)
    place = tl.arange(0, PLACES)[:, None]
    inside = (place < top_k) & (column < hidden)[None, :]
    rows = tl.load(rows_ptr + (token * top_k + place) * hidden + column[None, :], mask=inside, other=0.0)
    at = token * hidden + column
    added = tl.load(added_ptr + at, mask=(column < hidden) & (has_added != 0), other=0.0).to(tl.float32)
    total = tl.sum(rows.to(tl.float32), axis=0) + added
    tl.store(out_ptr + at, total.to(out_ptr.dtype.element_ty), mask=column < hidden)
