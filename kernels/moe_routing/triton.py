"""Expert routing as one Triton kernel: a token's scores stay in registers while the best are taken one by one."""

from __future__ import annotations

import functools

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels.dependent_launch import wait_for_previous
from kernels.launch import cdiv, launch
from kernels.moe_routing import Routing, variants
from kernels.moe_routing.softplus import route_by_softplus
from kernels.variants import Variant


def moe_routing(
    logits: Tensor, routing: Routing, bias: Tensor | None = None, chosen: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """As `reference.moe_routing`, for up to 512 experts, of which a token takes up to 16, in up to 32 groups; only with
    "sqrtsoftplus" may they be `chosen` before.

    A logit that is NaN counts as the worst, so that every id is that of an expert.
    """
    if routing.scoring == variants.SOFTPLUS:
        return route_by_softplus(logits, routing, bias, chosen)
    assert chosen is None, "experts that are chosen by token"
    tokens, experts = logits.shape
    weights = torch.empty(tokens, routing.top_k, dtype=torch.float32, device=logits.device)
    ids = torch.empty(tokens, routing.top_k, dtype=torch.int32, device=logits.device)
    if tokens:
        variant, rows_each = _plan(logits.dtype, experts, routing)
        launch(
            moe_routing_kernel, variant, (cdiv(tokens, rows_each),),
            logits.contiguous(), weights if bias is None else bias, weights, ids,
            tokens, experts, routing.top_k, routing.num_groups, routing.top_groups, int(bias is not None),
            int(routing.renormalise), routing.scale,
        )  # fmt: skip
    return weights, ids


@functools.cache
def _plan(dtype: torch.dtype, experts: int, routing: Routing) -> tuple[Variant, int]:
    """The variant, and how many tokens a program takes."""
    assert experts <= variants.MAX_EXPERTS, f"{experts} experts"
    assert routing.top_k <= min(variants.MAX_TOP_K, experts), f"{routing.top_k} of {experts} experts for each token"
    assert routing.num_groups <= variants.MAX_GROUPS, f"{routing.num_groups} groups of experts"
    block = variants.block_of(experts)
    variant = variants.of(str(dtype).removeprefix("torch."), block, routing.scoring, routing.grouped)
    return variant, variants.rows_of(block)


@triton.jit(
    do_not_specialize=["tokens", "experts", "top_k", "num_groups", "top_groups", "has_bias", "renormalise", "scale"]
)
def moe_routing_kernel(
    logits_ptr,  # [tokens, experts]
    bias_ptr,  # [experts], or anything where has_bias is 0
    weights_ptr,  # [tokens, top_k]
    ids_ptr,  # [tokens, top_k]
    tokens,
    experts,
    top_k,
    num_groups,
    top_groups,
    has_bias,
    renormalise,
    scale,
    ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
    PLACES: tl.constexpr,
    GROUPS: tl.constexpr,
    SIGMOID: tl.constexpr,
    GROUPED: tl.constexpr,
):
    wait_for_previous()
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    expert = tl.arange(0, BLOCK)[None, :]
    place = tl.arange(0, PLACES)[None, :]
    inside = (row < tokens)[:, None] & (expert < experts)
    start = row.to(tl.int64)[:, None]
    logits = tl.load(logits_ptr + start * experts + expert, mask=inside, other=-float("inf")).to(tl.float32)
    logits = tl.where(logits == logits, logits, -float("inf"))
    if SIGMOID:
        scores = 1.0 / (1.0 + tl.exp(-logits))
    else:
        # A row outside is all -inf; any finite number as its maximum avoids NaN.
        raised = tl.exp(logits - tl.maximum(tl.max(logits, axis=1), -3.0e38)[:, None])
        scores = raised / tl.maximum(tl.sum(raised, axis=1), 1e-30)[:, None]
    bias = tl.load(bias_ptr + expert, mask=(expert < experts) & (has_bias != 0), other=0.0)
    ranked = tl.where(inside, scores + bias, -float("inf"))
    if GROUPED:
        group_of = expert // (experts // num_groups)
        ranked = tl.where(_best_groups(ranked, group_of, num_groups, top_groups, has_bias, ROWS, BLOCK, GROUPS),
                          ranked, -float("inf"))  # fmt: skip

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
    written = (row < tokens)[:, None] & (place < top_k)
    tl.store(weights_ptr + start * top_k + place, weights * scale, mask=written)
    tl.store(ids_ptr + start * top_k + place, ids, mask=written)


@triton.jit
def _best_groups(
    ranked, group_of, num_groups, top_groups, has_bias, ROWS: tl.constexpr, BLOCK: tl.constexpr, GROUPS: tl.constexpr
):
    """Whether each expert is in one of its token's best groups: [ROWS, BLOCK]."""
    expert = tl.arange(0, BLOCK)[None, :]
    group = tl.arange(0, GROUPS)[None, :]
    merits = tl.full([ROWS, GROUPS], -float("inf"), tl.float32)
    for index in range(num_groups):
        members = tl.where(group_of == index, ranked, -float("inf"))
        merit = tl.max(members, axis=1)
        first = tl.argmax(members, axis=1, tie_break_left=True)[:, None]
        second = tl.max(tl.where(expert == first, -float("inf"), members), axis=1)
        merit += tl.where(has_bias != 0, second, 0.0)
        merits = tl.where(group == index, merit[:, None], merits)
    chosen = tl.zeros([ROWS, BLOCK], tl.int32)
    for _ in range(top_groups):
        best = tl.argmax(merits, axis=1, tie_break_left=True)[:, None]
        chosen = tl.where(group_of == best, 1, chosen)
        merits = tl.where(group == best, -float("inf"), merits)
    return chosen != 0
