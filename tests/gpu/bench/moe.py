"""Mixtures of experts at the shapes of three models, and block-scaled FP8 linear at Llama 3's.

cuBLAS does the same products as one batch of matrices, an expert each, which asks for equally many tokens for every
expert: so these batches are spread evenly.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from kernels.fp8_linear.reference import fp8_linear as torch_fp8_linear
from kernels.fp8_linear.triton import fp8_linear
from kernels.fused_moe import variants
from kernels.fused_moe.reference import fused_moe as torch_fused_moe
from kernels.fused_moe.sort import sort_by_expert
from kernels.fused_moe.triton import Products, add_up, fused_moe
from kernels.launch import architecture
from kernels.moe_routing import Routing
from kernels.moe_routing.reference import moe_routing as torch_moe_routing
from kernels.moe_routing.triton import moe_routing
from tests.gpu.bench.row import Row

DTYPE = torch.bfloat16
FP8 = torch.float8_e4m3fn
GOAL = 0.7  # of cuBLAS


class Model(NamedTuple):
    name: str
    hidden: int
    size: int
    experts: int
    top_k: int


QWEN3 = Model("Qwen3-30B-A3B", 2048, 768, 128, 8)
MIXTRAL = Model("Mixtral-8x7B", 4096, 14336, 8, 2)
MINIMAX = Model("MiniMax-M2", 3072, 1536, 256, 8)
PREFILL = ((QWEN3, 4096), (QWEN3, 16384), (MIXTRAL, 4096), (MINIMAX, 4096), (MINIMAX, 16384))
DECODE = ((QWEN3, 1), (QWEN3, 16), (QWEN3, 64), (MIXTRAL, 16), (MINIMAX, 64))
LINEAR = ((28672, 4096), (4096, 14336), (6144, 4096))  # outputs, inputs
WIDE_LINEAR = (57344, 8192)  # gate and up of Llama 3 70B: enough tiles for the GPU, however few tokens


class Batch(NamedTuple):
    x: Tensor
    weights: Tensor
    ids: Tensor
    gate_up: Tensor
    down: Tensor
    gate_up_scale: Tensor | None = None
    down_scale: Tensor | None = None


def rows(device: torch.device) -> Iterator[Row]:
    for tokens, experts, routing in (
        (16384, 128, Routing(8)),
        (16384, 256, Routing(8, "sigmoid")),
        (16384, 256, Routing(8, "sigmoid", num_groups=8, top_groups=4)),
        (64, 128, Routing(8)),
    ):
        yield _routing(device, tokens, experts, routing)
    yield from _around_products(device, QWEN3, 16384)
    for model, tokens in PREFILL:
        yield from _prefill(device, model, tokens, fp8=False)
    for model, tokens in PREFILL:
        yield from _prefill(device, model, tokens, fp8=True)
    for fp8 in (False, True):
        for model, tokens in DECODE:
            yield _decode(device, model, tokens, fp8)
    for outputs, inner in LINEAR:
        for tokens in (1, 16, 64, 256, 8192):
            yield _linear(device, tokens, outputs, inner)
    for tokens in (1, 16):
        yield _linear(device, tokens, *WIDE_LINEAR)


def batch(device: torch.device, model: Model, tokens: int, fp8: bool) -> Batch:
    """With equally many tokens for every expert, as far as they go."""
    pairs = tokens * model.top_k
    ids = (torch.randperm(pairs, device=device) % model.experts).int().view(tokens, -1)
    weights = torch.rand(tokens, model.top_k, device=device)
    x = torch.randn(tokens, model.hidden, device=device, dtype=DTYPE)
    gate_up = _experts(device, model.experts, 2 * model.size, model.hidden, fp8)
    down = _experts(device, model.experts, model.hidden, model.size, fp8)
    if not fp8:
        return Batch(x, weights, ids, gate_up, down)
    return Batch(x, weights, ids, gate_up, down, *(_scales(device, weight) for weight in (gate_up, down)))


def _experts(device: torch.device, experts: int, outputs: int, inner: int, fp8: bool) -> Tensor:
    """One expert's weights again and again: it is their place in memory that matters."""
    one = torch.randn(outputs, inner, device=device, dtype=DTYPE) / inner**0.5
    return (one.to(FP8) if fp8 else one).repeat(experts, 1, 1)


def _scales(device: torch.device, weight: Tensor) -> Tensor:
    shape = *weight.shape[:-2], -(-weight.shape[-2] // 128), -(-weight.shape[-1] // 128)
    return torch.rand(shape, device=device) + 0.5


def _routing(device: torch.device, tokens: int, experts: int, routing: Routing) -> Row:
    logits = torch.randn(tokens, experts, device=device, dtype=DTYPE)
    bias = torch.randn(experts, device=device) if routing.scoring == "sigmoid" else None
    run: dict[str, Callable[[], object]] = {
        "triton": lambda: moe_routing(logits, routing, bias),
        "torch": lambda: torch_moe_routing(logits, routing, bias),
    }
    shape = f"{tokens} x {routing.top_k} of {experts}" + " grouped" * routing.grouped
    return Row("moe_routing", shape, run, bytes=logits.nbytes + tokens * routing.top_k * 8)


def _around_products(device: torch.device, model: Model, tokens: int) -> Iterator[Row]:
    """What `fused_moe` does beside its products: by how much they alone are faster than the whole."""
    pairs = tokens * model.top_k
    ids = (torch.randperm(pairs, device=device) % model.experts).int().view(tokens, -1)
    products = torch.randn(pairs, model.hidden, device=device, dtype=DTYPE)
    out = torch.empty(tokens, model.hidden, device=device, dtype=DTYPE)
    block_m = variants.tile_of(architecture(), False, pairs, model.experts).block_m
    sort: dict[str, Callable[[], object]] = {
        "triton": lambda: sort_by_expert(ids, model.experts, block_m),
        "torch": lambda: ids.flatten().sort(stable=True),
    }
    add: dict[str, Callable[[], object]] = {
        "triton": lambda: add_up(products, out),
        "torch": lambda: products.view(tokens, model.top_k, -1).sum(1),
    }
    yield Row("fused_moe sort", f"{model.name} {tokens}", sort, bytes=2 * ids.nbytes)
    yield Row("fused_moe sum", f"{model.name} {tokens}", add, bytes=products.nbytes + out.nbytes)


def _prefill(device: torch.device, model: Model, tokens: int, fp8: bool) -> Iterator[Row]:
    """The two grouped products alone, and the whole op."""
    given = batch(device, model, tokens, fp8)
    flops = 6 * tokens * model.top_k * model.hidden * model.size
    cublas = _cublas(device, model, tokens)
    shape, kind = f"{model.name} {tokens}", " fp8" * fp8
    ceiling = "fp8" if fp8 else "bf16"
    products: dict[str, Callable[[], object]] = {"triton": _products(given), "cublas": cublas}
    whole: dict[str, Callable[[], object]] = {"triton": lambda: fused_moe(*given), "cublas": cublas}
    for op, run in (("grouped products", products), ("fused_moe", whole)):
        yield Row(op + kind, shape, run, flops=flops, goal=GOAL, ceiling=ceiling, goal_against="cublas")


def _products(given: Batch) -> Callable[[], object]:
    """Both grouped products of tokens that are sorted already."""
    num_experts, pairs = given.gate_up.shape[0], given.ids.numel()
    tile = variants.tile_of(architecture(), given.gate_up_scale is not None, pairs, num_experts)
    products = Products(sort_by_expert(given.ids, num_experts, tile.block_m), given.weights, tile, torch.inf)
    out = given.x.new_empty(pairs, given.x.shape[1])
    x, _, _, gate_up, down, gate_up_scale, down_scale = given
    if gate_up_scale is None or down_scale is None:
        return lambda: products.plain(x, gate_up, down, out, "silu")
    return lambda: products.fp8(x, gate_up, gate_up_scale, down, down_scale, out, "silu")


def _cublas(device: torch.device, model: Model, tokens: int) -> Callable[[], object]:
    """The same products in bf16, without gather, activation or sum."""
    each = tokens * model.top_k // model.experts
    x = torch.randn(model.experts, each, model.hidden, device=device, dtype=DTYPE)
    inner = torch.randn(model.experts, each, model.size, device=device, dtype=DTYPE)
    gate_up = _experts(device, model.experts, 2 * model.size, model.hidden, fp8=False)
    down = _experts(device, model.experts, model.hidden, model.size, fp8=False)
    return lambda: (torch.bmm(x, gate_up.mT), torch.bmm(inner, down.mT))


def _decode(device: torch.device, model: Model, tokens: int, fp8: bool) -> Row:
    """Bound by the weights of the experts that are called. In a CUDA graph, as the engine decodes."""
    given = batch(device, model, tokens, fp8)
    called = min(model.experts, tokens * model.top_k)
    moved = 3 * called * model.hidden * model.size * given.gate_up.itemsize
    run: dict[str, Callable[[], object]] = {"triton": _graphed(lambda: fused_moe(*given))}
    if not fp8:
        run["torch"] = lambda: torch_fused_moe(*given)
    return Row("fused_moe" + " fp8" * fp8, f"{model.name} {tokens}", run, bytes=moved)


def _linear(device: torch.device, tokens: int, outputs: int, inner: int) -> Row:
    x = torch.randn(tokens, inner, device=device, dtype=DTYPE)
    wide = torch.randn(outputs, inner, device=device, dtype=DTYPE)
    weight, scale = wide.to(FP8), _scales(device, wide)
    bound = "fp8" if tokens > 256 else "copy"
    run: dict[str, Callable[[], object]] = {
        "triton": _graphed(lambda: fp8_linear(x, weight, scale)),
        "cublas bf16": _graphed(lambda: torch.nn.functional.linear(x, wide)),
        "torch": lambda: torch_fp8_linear(x, weight, scale),
    }
    return Row("fp8_linear", f"{tokens} x {inner} x {outputs}", run, bytes=weight.nbytes,
               flops=2 * tokens * inner * outputs, ceiling=bound)  # fmt: skip


def _graphed(call: Callable[[], object]) -> Callable[[], object]:
    """`call` as a CUDA graph, so that a small product is not timed by how fast Python launches it."""
    call()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        call()
    return graph.replay
