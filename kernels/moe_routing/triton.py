"""Expert routing in Triton: a token's scores stay in registers while the best are taken one by one. For few tokens the
same launch sorts their pairs by expert."""

from __future__ import annotations

import functools

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels.dependent_launch import wait_for_previous
from kernels.fused_moe.sort import room
from kernels.fused_moe.variants import tile_of
from kernels.launch import architecture, cdiv, launch
from kernels.moe_routing import Routing, variants
from kernels.moe_routing.routed import Routed
from kernels.moe_routing.softplus import route_by_softplus
from kernels.variants import Variant


def moe_routing(
    logits: Tensor,
    routing: Routing,
    bias: Tensor | None = None,
    chosen: Tensor | None = None,
    fp8_experts: bool | None = None,
) -> Routed:
    """As `reference.moe_routing`, for up to 512 experts, of which a token takes up to 16, in up to 32 groups; only with
    "sqrtsoftplus" may they be `chosen` before. With the other scorings, as many tokens as `variants.SORTED_ROWS` says
    are sorted, too.

    A logit that is NaN counts as the worst, so that every id is that of an expert.
    """
    if routing.scoring == variants.SOFTPLUS:
        return route_by_softplus(logits, routing, bias, chosen)
    assert chosen is None, "experts that are chosen by token"
    tokens, experts = logits.shape
    pairs, device = tokens * routing.top_k, logits.device
    weights = torch.empty(tokens, routing.top_k, dtype=torch.float32, device=device)
    ids = torch.empty(tokens, routing.top_k, dtype=torch.int32, device=device)
    if not tokens:
        return Routed(weights, ids)
    given = logits.contiguous(), weights if bias is None else bias, weights, ids
    numbers = (tokens, experts, routing.top_k, routing.num_groups, routing.top_groups, int(bias is not None),
               int(routing.renormalise), routing.scale)  # fmt: skip
    variant, rows, sorts = _plan(tokens, logits.dtype, experts, routing, fp8_experts is not None)
    if not sorts:
        launch(moe_routing_kernel, variant, (cdiv(tokens, rows),), *given, *numbers)
        return Routed(weights, ids)
    block_m = tile_of(architecture(), bool(fp8_experts), pairs, experts).block_m
    by_expert = room(pairs, experts, block_m, device)
    launch(sorted_routing_kernel, variant, (1,), *given, *by_expert, *numbers, block_m)
    return Routed(weights, ids, by_expert)


@functools.cache
def _plan(tokens: int, dtype: torch.dtype, experts: int, routing: Routing, sorts: bool) -> tuple[Variant, int, bool]:
    """The variant, how many tokens a program takes, and whether it sorts them."""
    assert experts <= variants.MAX_EXPERTS, f"{experts} experts"
    assert routing.top_k <= min(variants.MAX_TOP_K, experts), f"{routing.top_k} of {experts} experts for each token"
    assert routing.num_groups <= variants.MAX_GROUPS, f"{routing.num_groups} groups of experts"
    block = variants.block_of(experts)
    form = str(dtype).removeprefix("torch."), block, routing.scoring, routing.grouped
    rows = next((rows for rows in variants.SORTED_ROWS[block] if tokens <= rows), 0) if sorts else 0
    if rows:
        return variants.of_sorted(*form, rows), rows, True
    return variants.of(*form), variants.rows_of(block), False


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
    scores, ranked = _ranked(
        row, logits_ptr, bias_ptr, tokens, experts, num_groups, top_groups, has_bias, ROWS, BLOCK, GROUPS, SIGMOID,
        GROUPED,
    )  # fmt: skip
    expert = tl.arange(0, BLOCK)[None, :]
    place = tl.arange(0, PLACES)[None, :]
    ids = tl.zeros([ROWS, PLACES], tl.int32)
    weights = tl.zeros([ROWS, PLACES], tl.float32)
    for taken in range(top_k):
        best = _best(ranked, expert, BLOCK)
        score = tl.sum(tl.where(expert == best, scores, 0.0), axis=1)[:, None]
        ids = tl.where(place == taken, best, ids)
        weights = tl.where(place == taken, score, weights)
        ranked = tl.where(expert == best, -float("inf"), ranked)
    if renormalise != 0:
        weights = weights / tl.maximum(tl.sum(weights, axis=1), 1e-20)[:, None]
    written = (row < tokens)[:, None] & (place < top_k)
    start = row.to(tl.int64)[:, None]
    tl.store(weights_ptr + start * top_k + place, weights * scale, mask=written)
    tl.store(ids_ptr + start * top_k + place, ids, mask=written)


@triton.jit(
    do_not_specialize=[
        "tokens", "experts", "top_k", "num_groups", "top_groups", "has_bias", "renormalise", "scale", "block_m",
    ]
)  # fmt: skip
def sorted_routing_kernel(
    logits_ptr,  # as in moe_routing_kernel
    bias_ptr,
    weights_ptr,
    ids_ptr,
    order_ptr,  # as in `Sorted`
    blocks_ptr,
    tokens,
    experts,
    top_k,
    num_groups,
    top_groups,
    has_bias,
    renormalise,
    scale,
    block_m,
    ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
    GROUPS: tl.constexpr,
    SIGMOID: tl.constexpr,
    GROUPED: tl.constexpr,
):
    """One program has all tokens and all experts before it as one table. How many tokens before have the same expert
    says where a pair goes: sums along the columns are all that sorting takes."""
    wait_for_previous()
    row = tl.arange(0, ROWS)
    scores, ranked = _ranked(
        row, logits_ptr, bias_ptr, tokens, experts, num_groups, top_groups, has_bias, ROWS, BLOCK, GROUPS, SIGMOID,
        GROUPED,
    )  # fmt: skip
    expert = tl.arange(0, BLOCK)[None, :] + tl.zeros([ROWS, 1], tl.int32)
    choice = tl.full([ROWS, BLOCK], -1, tl.int32)
    for taken in range(top_k):
        hit = expert == _best(ranked, expert, BLOCK)
        choice = tl.where(hit, taken, choice)
        ranked = tl.where(hit, -float("inf"), ranked)
    chosen = (choice >= 0) & (row < tokens)[:, None]
    pair = row[:, None] * top_k + choice
    weights = tl.where(chosen, scores, 0.0)
    if renormalise != 0:
        weights = weights / tl.maximum(tl.sum(weights, axis=1), 1e-20)[:, None]
    tl.store(weights_ptr + pair, weights * scale, mask=chosen)
    tl.store(ids_ptr + pair, expert, mask=chosen)

    count = chosen.to(tl.int32)
    before = tl.cumsum(count, axis=0) - count
    total = tl.sum(count, axis=0)  # [BLOCK], of each expert
    end = tl.cumsum(total, axis=0)
    blocks = tl.cdiv(total, block_m)
    first_block = tl.cumsum(blocks, axis=0) - blocks
    place = (end - total)[None, :] + before
    tl.store(order_ptr + place, pair, mask=chosen)
    opens = chosen & (before % block_m == 0)
    entry = blocks_ptr + 4 * (1 + first_block[None, :] + before // block_m)
    tl.store(entry, expert, mask=opens)
    tl.store(entry + 1, place, mask=opens)
    tl.store(entry + 2, tl.minimum(place + block_m, end[None, :]), mask=opens)
    tl.store(blocks_ptr, tl.sum(blocks, axis=0))


@triton.jit
def _ranked(
    row,
    logits_ptr,
    bias_ptr,
    tokens,
    experts,
    num_groups,
    top_groups,
    has_bias,
    ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
    GROUPS: tl.constexpr,
    SIGMOID: tl.constexpr,
    GROUPED: tl.constexpr,
):
    """The scores of tokens `row`, and what their experts are chosen by, [ROWS, BLOCK] each: finite for every expert,
    so that one that was taken, at minus infinity, is not taken again."""
    expert = tl.arange(0, BLOCK)[None, :]
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
    ranked = tl.maximum(scores + bias, -3.0e38)
    if GROUPED:
        group_of = expert // (experts // num_groups)
        known = tl.where(expert < experts, ranked, -float("inf"))
        best = _best_groups(known, group_of, num_groups, top_groups, has_bias, ROWS, BLOCK, GROUPS)
        ranked = tl.where(best, ranked, -3.2e38)
    return scores, tl.where(expert < experts, ranked, -float("inf"))


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
        if has_bias != 0:
            first = _best(members, expert, BLOCK)
            merit += tl.max(tl.where(expert == first, -float("inf"), members), axis=1)
        merits = tl.where(group == index, merit[:, None], merits)
    chosen = tl.zeros([ROWS, BLOCK], tl.int32)
    for _ in range(top_groups):
        best = _best(merits, group, GROUPS)
        chosen = tl.where(group_of == best, 1, chosen)
        merits = tl.where(group == best, -float("inf"), merits)
    return chosen != 0


@triton.jit
def _best(values, place, BLOCK: tl.constexpr):
    """Where the largest of each row is, the first of equals: [rows, 1]. Two plain reductions take half the time of one
    over pairs, as `tl.argmax` is."""
    largest = tl.max(values, axis=1)[:, None]
    return tl.min(tl.where(values == largest, place, BLOCK - 1), axis=1)[:, None]
