"""Expert routing in plain torch."""

from __future__ import annotations

import torch
from torch import Tensor

from kernels.moe_routing import Routing


def moe_routing(logits: Tensor, routing: Routing, bias: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """`logits` [T, E] (any float) and `bias` [E] float32 -> weights [T, k] float32, expert ids [T, k] int32.

    Best first; among equals the lower id. A group's score is the sum of its two best with a bias (DeepSeek V3), else
    its best (DeepSeek V2). Experts of other groups cannot be chosen, whatever their score.
    """
    wide = logits.float()
    scores = wide.sigmoid() if routing.scoring == "sigmoid" else wide.softmax(-1)
    ranked = scores if bias is None else scores + bias
    if routing.grouped:
        groups = ranked.unflatten(-1, (routing.num_groups, -1))  # [T, groups, E / groups]
        merit = groups.amax(-1) if bias is None else groups.topk(2, dim=-1).values.sum(-1)
        chosen = merit.sort(dim=-1, descending=True, stable=True).indices[:, : routing.top_groups]
        out = torch.ones_like(merit, dtype=torch.bool).scatter_(1, chosen, False)
        ranked = groups.masked_fill(out[..., None], -torch.inf).flatten(-2)
    ids = ranked.sort(dim=-1, descending=True, stable=True).indices[:, : routing.top_k]
    weights = scores.gather(-1, ids)
    if routing.renormalise:
        weights = weights / weights.sum(-1, keepdim=True).clamp(min=1e-20)
    return weights * routing.scale, ids.to(torch.int32)
