"""Expert routing in plain torch."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import softplus

from kernels.moe_routing import Routing
from kernels.moe_routing.routed import Routed


def moe_routing(
    logits: Tensor,
    routing: Routing,
    bias: Tensor | None = None,
    chosen: Tensor | None = None,
    fp8_experts: bool | None = None,
) -> Routed:
    """`logits` [T, E] (any float) and `bias` [E] float32 -> weights [T, k] float32, expert ids [T, k] int32. Where the
    ids are `chosen` already, [T, k], only their weights are left to find. A backend may sort the ids for a `fused_moe`
    of experts in FP8 or not (`fp8_experts`); None: they are not for one.

    Best first; among equals the lower id. A group's score is the sum of its two best with a bias (DeepSeek V3), else
    its best (DeepSeek V2). Experts of other groups cannot be chosen, whatever their score.
    """
    wide = logits.float()
    match routing.scoring:
        case "sigmoid":
            scores = wide.sigmoid()
        case "sqrtsoftplus":
            scores = softplus(wide).sqrt()
        case _:
            scores = wide.softmax(-1)
    ids = _best(scores, routing, bias) if chosen is None else chosen.long()
    weights = scores.gather(-1, ids)
    if routing.renormalise:
        weights = weights / weights.sum(-1, keepdim=True).clamp(min=1e-20)
    return Routed(weights * routing.scale, ids.to(torch.int32))


def _best(scores: Tensor, routing: Routing, bias: Tensor | None) -> Tensor:
    ranked = scores if bias is None else scores + bias
    if routing.grouped:
        groups = ranked.unflatten(-1, (routing.num_groups, -1))  # [T, groups, E / groups]
        merit = groups.amax(-1) if bias is None else groups.topk(2, dim=-1).values.sum(-1)
        chosen = merit.sort(dim=-1, descending=True, stable=True).indices[:, : routing.top_groups]
        out = torch.ones_like(merit, dtype=torch.bool).scatter_(1, chosen, False)
        ranked = groups.masked_fill(out[..., None], -torch.inf).flatten(-2)
    return ranked.sort(dim=-1, descending=True, stable=True).indices[:, : routing.top_k]
