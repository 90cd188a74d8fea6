"""The ops that only move bytes, at Llama 3's shapes (8B, and 70B's width): large batches first, then a decode step.

Each large row moves hundreds of megabytes, more than any L2 cache holds.
"""

from __future__ import annotations

import functools
import importlib.util
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

from kernels.embedding import reference as torch_embedding
from kernels.embedding import triton as embedding
from kernels.gated_activation import reference as torch_gated_activation
from kernels.gated_activation import triton as gated_activation
from kernels.rms_norm import reference as torch_rms_norm
from kernels.rms_norm import triton as rms_norm
from kernels.rotary_cache import reference as torch_rotary_cache
from kernels.rotary_cache import triton as rotary_cache
from kernels.rotary_cache.frequencies import cos_sin_table, inverse_frequencies
from tests.gpu.bench.row import Row

GOAL = 0.85
DTYPE = torch.bfloat16
HEADS, KV_HEADS, DIM, INNER, VOCABULARY = 32, 8, 128, 14336, 128256
DECODE = 64  # tokens


def rows(device: torch.device) -> Iterator[Row]:
    for tokens, size in ((16384, 8192), (16384, 7168), (16384, 5120), (16384, 4096)):
        yield _norm(device, tokens, size, GOAL)
    # Each number is read once more for the one that it turns with, and once more normed.
    for norm, cache_dtype, goal in ((False, DTYPE, 0.75), (True, DTYPE, 0.5), (True, torch.float8_e4m3fn, 0.5)):
        yield _rotary_cache(device, 32768, norm, cache_dtype, goal)
    for activation in ("silu", "gelu", "gelu_tanh"):
        yield _activation(device, 16384, INNER, activation, GOAL)
    yield _activation(device, 131072, 768, "silu", GOAL)  # of narrow experts
    yield _embedding(device, 16384, None)
    yield _norm(device, DECODE, 4096, None)
    yield _rotary_cache(device, DECODE, True, DTYPE, None)
    yield _activation(device, DECODE, INNER, "silu", None)
    yield _embedding(device, DECODE, None)


def _norm(device: torch.device, tokens: int, size: int, goal: float | None) -> Row:
    x, residual = _randn(device, tokens, size), _randn(device, tokens, size)
    weight = _randn(device, size)
    run = _norms(x, weight, 1e-6, residual)
    return Row("rms_norm + residual", f"{tokens} x {size}", run, bytes=4 * x.nbytes, goal=goal)


def _norms(*arguments: Any) -> dict[str, Callable[[], object]]:
    run = _both(rms_norm.rms_norm, torch_rms_norm.rms_norm, *arguments)
    if importlib.util.find_spec("flashinfer") is not None:
        from kernels.rms_norm import flashinfer

        run["flashinfer"] = functools.partial(flashinfer.rms_norm, *arguments)
    return run


def _rotary_cache(device: torch.device, tokens: int, norm: bool, cache_dtype: torch.dtype, goal: float | None) -> Row:
    query, key, value = _qkv(device, tokens).split((HEADS, KV_HEADS, KV_HEADS), dim=1)
    table = cos_sin_table(*inverse_frequencies(DIM, 5e5), 8192, DTYPE).to(device)
    positions = torch.arange(tokens, device=device) % 8192
    blocks = -(-2 * tokens // 16)
    caches = [torch.zeros(blocks, 16, KV_HEADS, DIM, device=device, dtype=cache_dtype) for _ in range(2)]
    order = torch.randperm(blocks, device=device)[: -(-tokens // 16), None] * 16
    slots = (order + torch.arange(16, device=device)).flatten()[:tokens]  # whole blocks, scattered
    norms = (_randn(device, DIM), _randn(device, DIM)) if norm else None
    functions = rotary_cache.rotary_cache, torch_rotary_cache.rotary_cache
    run = _both(*functions, query, key, value, positions, table, *caches, slots, norms, 1e-6)
    moved = 2 * query.nbytes + 2 * key.numel() * (DTYPE.itemsize + cache_dtype.itemsize)
    moved += positions.nbytes + slots.nbytes + table[:tokens].nbytes
    label = f"{'normed ' if norm else ''}{str(cache_dtype).removeprefix('torch.')}"
    return Row("rotary_cache", f"{tokens} x {HEADS + 2 * KV_HEADS} x {DIM} {label}", run, bytes=moved, goal=goal)


def _activation(device: torch.device, tokens: int, size: int, activation: str, goal: float | None) -> Row:
    gate_up = _randn(device, tokens, 2 * size)
    run = _both(gated_activation.gated_activation, torch_gated_activation.gated_activation, gate_up, activation)
    return Row("gated_activation", f"{tokens} x 2 x {size} {activation}", run, bytes=gate_up.nbytes * 3 // 2, goal=goal)


def _embedding(device: torch.device, tokens: int, goal: float | None) -> Row:
    table = _randn(device, VOCABULARY, 4096)
    token_ids = torch.randperm(VOCABULARY, device=device)[:tokens]
    run = _both(embedding.embedding, torch_embedding.embedding, token_ids, table)
    return Row("embedding", f"{tokens} x 4096", run, bytes=2 * tokens * 4096 * DTYPE.itemsize, goal=goal)


def _both(
    ours: Callable[..., object], reference: Callable[..., object], *arguments: object
) -> dict[str, Callable[[], object]]:
    return {"triton": functools.partial(ours, *arguments), "torch": functools.partial(reference, *arguments)}


def _qkv(device: torch.device, tokens: int) -> Tensor:
    """The fused projection of queries, keys and values, by heads."""
    return _randn(device, tokens, HEADS + 2 * KV_HEADS, DIM)


def _randn(device: torch.device, *shape: int) -> Tensor:
    return torch.randn(shape, device=device, dtype=DTYPE)
