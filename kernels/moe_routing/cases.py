"""Calls that launch every variant of expert routing."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor

from kernels.cases import Case, randn
from kernels.context import Context
from kernels.fused_moe.reference import sort
from kernels.fused_moe.variants import tile_of
from kernels.launch import architecture
from kernels.moe_routing import Routing, variants
from kernels.variants import Variant

TOLERANCE = 1e-5  # of weights in float32, from the same logits


class Shape(NamedTuple):
    tokens: int
    experts: int
    bias: bool = False


def cases(arch: int, model: Context | None = None) -> Iterator[Case]:
    for variant in variants.variants(arch, model):
        constants = dict(variant.constants)
        if "BY_TABLE" in constants:
            yield _softplus(variant, model)
            continue
        dtype = {"*bf16": torch.bfloat16, "*fp16": torch.float16, "*fp32": torch.float32}[variant.arguments[0]]
        scoring, block = "sigmoid" if constants["SIGMOID"] else "softmax", int(constants["BLOCK"])
        experts = {32: 8, 128: 96, 256: 256, 512: 384}[block] if model is None else model.num_experts
        top_k = min(8, experts // 2) if model is None else model.experts_per_token
        groups = 0 if not constants["GROUPED"] else model.num_expert_groups if model else 4
        top_groups = max(groups // 2, 1) if groups else 0
        in_order = variant.kernel == variants.SORTED_KERNEL
        most = int(constants["ROWS"])
        for tokens, bias in ((most, False), (most - 3, True)) if in_order else ((1, False), (17, True)):
            routing = Routing(top_k, scoring, renormalise=tokens > 1, num_groups=groups, top_groups=top_groups,
                              scale=2.5)  # fmt: skip
            name = f"{tokens} tokens, {top_k} of {experts} experts, {dtype} {scoring}"
            name += f" {groups} groups" * bool(groups) + " bias" * bias
            name += " sorted" * in_order
            yield Case(name, call(Shape(tokens, experts, bias), dtype, routing, in_order), TOLERANCE)


def _softplus(variant: Variant, model: Context | None) -> Case:
    """Every expert among the logits, very small and large ones too."""
    constants = dict(variant.constants)
    dtype = {"*bf16": torch.bfloat16, "*fp16": torch.float16, "*fp32": torch.float32}[variant.arguments[0]]
    block, by_table = int(constants["BLOCK"]), bool(constants["BY_TABLE"])
    experts = {32: 8, 128: 96, 256: 256, 512: 384}[block] if model is None else model.num_experts
    routing = Routing(min(6, experts // 2), variants.SOFTPLUS, scale=1.5)

    def run(moe_routing: Callable[..., Any], device: torch.device) -> list[Tensor]:
        logits = randn((17, experts), dtype, device, seed=1) * 9
        if by_table:
            order = torch.Generator().manual_seed(3)
            chosen = torch.stack([torch.randperm(experts, generator=order)[: routing.top_k] for _ in range(17)])
            return list(moe_routing(logits, routing, None, chosen.to(device))[:2])
        return list(moe_routing(logits, routing, randn((experts,), torch.float32, device, seed=2) / 8)[:2])

    return Case(f"17 tokens, {routing.top_k} of {experts} experts, {dtype} by softplus{' and table' * by_table}", run,
                TOLERANCE)  # fmt: skip


def call(shape: Shape, dtype: torch.dtype, routing: Routing, in_order: bool = False) -> Callable[..., list[Tensor]]:
    def run(moe_routing: Callable[..., Any], device: torch.device) -> list[Tensor]:
        logits = randn((shape.tokens, shape.experts), dtype, device, seed=1)
        bias = randn((shape.experts,), torch.float32, device, seed=2) / 8 if shape.bias else None
        if not in_order:
            weights, ids, _ = moe_routing(logits, routing, bias)
            return [weights, ids]
        weights, ids, by_expert = moe_routing(logits, routing, bias, fp8_experts=False)
        block_m = tile_of(architecture(), False, ids.numel(), shape.experts).block_m
        if by_expert is None:  # torch does not sort
            by_expert = sort(ids, shape.experts, block_m)
        count = by_expert.blocks[:1, :1]
        # What is written: in the interpreter a block's last number, and all behind the last block, are not.
        return [weights, ids, by_expert.order, count, by_expert.blocks[1 : 1 + int(count), :3]]

    return run
