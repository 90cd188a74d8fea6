"""Routing by the root of the logits' softplus (DeepSeek V4), as one Triton kernel: of the best experts, or of those
that a table has chosen for a token."""
# mypy: disallow-untyped-defs=False, disallow-incomplete-defs=False, disallow-untyped-decorators=False

from __future__ import annotations

import functools

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels.dependent_launch import wait_for_previous
from kernels.launch import cdiv, launch
from kernels.moe_routing import Routing, variants
from kernels.moe_routing.routed import Routed
from kernels.variants import Variant


def route_by_softplus(logits: Tensor, routing: Routing, bias: Tensor | None, chosen: Tensor | None) -> Routed:
    """As `triton.moe_routing`; `chosen` [T, k] are int64."""
    assert not routing.grouped, "groups of experts"
    tokens, experts = logits.shape
    weights = torch.empty(tokens, routing.top_k, dtype=torch.float32, device=logits.device)
    ids = torch.empty(tokens, routing.top_k, dtype=torch.int32, device=logits.device)
    if tokens:
        variant = _plan(logits.dtype, experts, routing, chosen is not None)
        launch(
            softplus_routing_kernel, variant, (cdiv(tokens, int(variant.options["ROWS"])),),
            logits.contiguous(), weights if bias is None else bias, ids if chosen is None else chosen.contiguous(),
            weights, ids, tokens, experts, routing.top_k, int(bias is not None), int(routing.renormalise),
            routing.scale,
        )  # fmt: skip
    return Routed(weights, ids)


@functools.cache
def _plan(dtype: torch.dtype, experts: int, routing: Routing, by_table: bool) -> Variant:
    assert experts <= variants.MAX_EXPERTS, f"{experts} experts"
    assert routing.top_k <= min(variants.MAX_TOP_K, experts), f"{routing.top_k} of {experts} experts for each token"
    block = variants.block_of(experts)
    return variants.softplus(str(dtype).removeprefix("torch."), block, by_table)


@triton.jit(do_not_specialize=["tokens", "experts", "top_k", "has_bias", "renormalise", "scale"])
def softplus_routing_kernel(
    logits_ptr,  # [tokens, experts]
    bias_ptr,  # [experts], or anything where has_bias is 0
    chosen_ptr,  # [tokens, top_k] int64 where BY_TABLE, else anything
    weights_ptr,  # [tokens, top_k]
    ids_ptr,  # [tokens, top_k]
    tokens,
    experts,
    top_k,
    has_bias,
    renormalise,
    scale,
    ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
    PLACES: tl.constexpr,
    BY_TABLE: tl.constexpr,
):
    wait_for_previous()
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    start = row.to(tl.int64)[:, None]
    place = tl.arange(0, PLACES)[None, :]
    written = (row < tokens)[:, None] & (place < top_k)
    if BY_TABLE:
        ids = tl.load(chosen_ptr + start * top_k + place, mask=written, other=0).to(tl.int32)
        ids = tl.minimum(tl.maximum(ids, 0), experts - 1)  # so that every id is that of an expert
        weights = _score(tl.load(logits_ptr + start * experts + ids, mask=written, other=-float("inf")))
    else:
        expert = tl.arange(0, BLOCK)[None, :]
        inside = (row < tokens)[:, None] & (expert < experts)
        scores = _score(tl.load(logits_ptr + start * experts + expert, mask=inside, other=-float("inf")))
        bias = tl.load(bias_ptr + expert, mask=(expert < experts) & (has_bias != 0), other=0.0)
        ranked = tl.where(inside, scores + bias, -float("inf"))
        ids = tl.zeros([ROWS, PLACES], tl.int32)
        weights = tl.zeros([ROWS, PLACES], tl.float32)
        for taken in range(top_k):
            best = tl.argmax(ranked, axis=1, tie_break_left=True)[:, None]
            score = tl.sum(tl.where(expert == best, scores, 0.0), axis=1)[:, None]
            ids = tl.where(place == taken, best, ids)
            weights = tl.where(place == taken, score, weights)
            ranked = tl.where(expert == best, -float("inf"), ranked)
    if renormalise != 0:
        weights = weights / tl.maximum(tl.sum(weights, axis=1), 1e-20)[:, None]
    tl.store(weights_ptr + start * top_k + place, weights * scale, mask=written)
    tl.store(ids_ptr + start * top_k + place, ids, mask=written)


@triton.jit
def _score(logits):
    """sqrt(log(1 + e^x)); 0 of -inf and of NaN. Above 20 softplus is x, as torch has it; 1 + e^x loses what is below
    2^-24, so that small ones are e^x (1 - e^x / 2)."""
    x = logits.to(tl.float32)
    x = tl.where(x == x, x, -float("inf"))
    raised = tl.exp(tl.minimum(x, 20.0))
    softplus = tl.where(raised < 1e-3, raised * (1.0 - 0.5 * raised), tl.log(1.0 + raised))
    return tl.sqrt(tl.where(x > 20.0, x, softplus))
