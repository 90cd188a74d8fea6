"""Calls that launch every variant of the mixture of experts."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor

from kernels.cases import TOLERANCES, Case, randn
from kernels.context import Context
from kernels.float4 import GROUP as GROUP_OF_FOUR
from kernels.fp8_linear import GROUP
from kernels.fp8_linear.cases import ROUNDED_TOLERANCE, blocks
from kernels.fp8_linear.variants import has_fp8
from kernels.fused_moe import variants
from kernels.gated_activation import ACTIVATIONS


class Shape(NamedTuple):
    tokens: int
    top_k: int
    experts: int
    hidden: int
    size: int


def cases(arch: int, model: Context | None = None) -> Iterator[Case]:
    if model is not None and not model.num_experts:
        return
    formats = (False,) if model is not None and not model.fp8_experts else (False, True)
    for dtype in variants.DTYPES if model is None else (model.dtype,):
        for fp8 in formats:
            for activation in ACTIVATIONS if model is None else (model.activation,):
                for shape in _shapes(arch, fp8, model):
                    limit = 0.5 if activation == "silu" and shape.tokens % 2 else None
                    yield _case(arch, shape, getattr(torch, dtype), fp8, activation, limit, _adds(shape, model))
        if model is None or model.mxfp4_experts:
            for activation in ACTIVATIONS if model is None else (model.activation,):
                for shape in _mxfp4_shapes(model):
                    yield _mxfp4(shape, getattr(torch, dtype), activation, _adds(shape, model))
        for shape in _many_experts(model):
            yield _case(arch, shape, getattr(torch, dtype), False, ACTIVATIONS[0] if model is None else
                        model.activation, None, _adds(shape, model))  # fmt: skip


def _adds(shape: Shape, model: Context | None) -> bool:
    """Whether the result of shared experts is added: of some, where the model has a kernel for it."""
    if model is not None and shape.top_k != model.experts_per_token:
        return False
    return shape.tokens % 2 > 0 and (shape.top_k > 1 or model is None or model.shared_intermediate_size > 0)


def _shapes(arch: int, fp8: bool, model: Context | None) -> Iterator[Shape]:
    """One for every tile, with few experts or as many as the model has."""
    hidden, size = (272, GROUP) if fp8 else (80, 48)
    experts, top_k = (3, 2) if model is None else (model.num_experts, model.experts_per_token)
    least = 0
    for tile in (variants.FP8 if fp8 else variants.PLAIN)[arch]:
        tokens = (least + min(tile.rows, least + 32)) // 2 * experts // top_k + 1
        yield Shape(tokens, top_k, experts, hidden, size)
        least = tile.rows
    if fp8:  # the largest tile once more, with two groups of what the second product multiplies, each with its scales
        yield Shape(tokens + tokens % 2, top_k, experts, hidden, 2 * size)


def _mxfp4_shapes(model: Context | None) -> Iterator[Shape]:
    """One for every tile; neither size is a multiple of what a tile takes."""
    experts, top_k = (3, 2) if model is None else (model.num_experts, model.experts_per_token)
    least = 0
    for tile in variants.MXFP4:
        tokens = (least + min(tile.rows, least + 32)) // 2 * experts // top_k + 1
        yield Shape(tokens, top_k, experts, 160, 96)
        least = tile.rows


def _mxfp4(shape: Shape, dtype: torch.dtype, activation: str, adds: bool) -> Case:
    limit = 0.5 if activation == "silu" and shape.tokens % 2 else None

    def run(fused_moe: Callable[..., Any], device: torch.device) -> list[Tensor]:
        tokens, top_k, experts, hidden, size = shape
        x = randn((tokens, hidden), dtype, device, seed=1)
        weights, ids = randn((tokens, experts), torch.float32, device, seed=2).softmax(-1).topk(top_k)
        gate_up, gate_up_scale = _packed((experts, 2 * size, hidden), device, seed=3)
        down, down_scale = _packed((experts, hidden, size), device, seed=4)
        scales = gate_up_scale, down_scale
        added = {"added": randn((tokens, hidden), dtype, device, seed=5)} if adds else {}
        return [fused_moe(x, weights, ids.to(torch.int32), gate_up, down, *scales, activation, limit, **added)]

    name = f"{shape.tokens} tokens, {shape.top_k} of {shape.experts} experts of {shape.hidden} x {shape.size}, {dtype}"
    return Case(f"{name} MXFP4 {activation}" + (f" limit {limit}" if limit else ""), run, TOLERANCES[dtype])


def _packed(shape: tuple[int, int, int], device: torch.device, seed: int) -> tuple[Tensor, Tensor]:
    """Random codes, with scales from 2^-5 to 2^-2."""
    order = torch.Generator().manual_seed(seed)
    codes = torch.randint(0, 256, (*shape[:2], shape[2] // 2), generator=order, dtype=torch.uint8)
    scales = torch.randint(122, 126, (*shape[:2], shape[2] // GROUP_OF_FOUR), generator=order, dtype=torch.uint8)
    return codes.to(device), scales.to(device).view(torch.float8_e8m0fnu)


def _many_experts(model: Context | None) -> Iterator[Shape]:
    """For every sorting kernel, and every number of experts a token may have."""
    some = ((8, 2), (64, 4), (256, 8), (384, 16)) if model is None else ((model.num_experts, model.experts_per_token),)
    for experts, top_k in some:
        yield Shape(3, top_k, experts, 32, 16)
        yield Shape(variants.COUNTED_FROM // top_k + 1, top_k, experts, 32, 16)
    yield Shape(5, 1, 2, 32, 16)


def _case(
    arch: int, shape: Shape, dtype: torch.dtype, fp8: bool, activation: str, limit: float | None, adds: bool
) -> Case:
    name = f"{shape.tokens} tokens, {shape.top_k} of {shape.experts} experts of {shape.hidden} x {shape.size}, {dtype}"
    name += f"{' FP8' * fp8} {activation}" + (f" limit {limit}" if limit is not None else "")
    tolerance = ROUNDED_TOLERANCE if fp8 and has_fp8(arch) else TOLERANCES[dtype]
    return Case(name, call(shape, dtype, fp8, activation, limit, adds), tolerance)


def call(
    shape: Shape,
    dtype: torch.dtype,
    fp8: bool,
    activation: str = "silu",
    limit: float | None = None,
    adds: bool = False,
) -> Callable[..., list[Tensor]]:
    def run(fused_moe: Callable[..., Any], device: torch.device) -> list[Tensor]:
        tokens, top_k, experts, hidden, size = shape
        x = randn((tokens, hidden), dtype, device, seed=1)
        scores = randn((tokens, experts), torch.float32, device, seed=2)
        weights, ids = scores.softmax(-1).topk(top_k)
        ids = ids.to(torch.int32)
        added = {"added": randn((tokens, hidden), dtype, device, seed=7)} if adds else {}
        if fp8:
            gate_up, gate_up_scale = blocks((experts, 2 * size, hidden), device, seed=3)
            down, down_scale = blocks((experts, hidden, size), device, seed=5)
            scales = gate_up_scale / hidden**0.5, down_scale
            return [fused_moe(x, weights, ids, gate_up, down, *scales, activation, limit, **added)]
        gate_up = randn((experts, 2 * size, hidden), dtype, device, seed=3) / hidden**0.5
        down = randn((experts, hidden, size), dtype, device, seed=4)
        return [fused_moe(x, weights, ids, gate_up, down, None, None, activation, limit, **added)]

    return run
