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

from kernels.cache_write import reference as torch_cache_write
from kernels.cache_write import triton as cache_write
from kernels.embedding import reference as torch_embedding
from kernels.embedding import triton as embedding
from kernels.gated_activation import reference as torch_gated_activation
from kernels.gated_activation import triton as gated_activation
from kernels.rms_norm import reference as torch_rms_norm
from kernels.rms_norm import triton as rms_norm
from kernels.rotary import reference as torch_rotary
from kernels.rotary import triton as rotary
from kernels.rotary.frequencies import cos_sin_table, inverse_frequencies
from tests.gpu.bench.row import Row

GOAL = 0.85
DTYPE = torch.bfloat16
HEADS, KV_HEADS, DIM, INNER, VOCABULARY = 32, 8, 128, 14336, 128256
DECODE = 64  # tokens


def rows(device: torch.device) -> Iterator[Row]:
    for tokens, size in ((16384, 8192), (16384, 7168), (16384, 5120), (16384, 4096)):
        yield _norm(device, tokens, size, GOAL)
    yield _head_norm(device, 32768, HEADS, GOAL)
    yield _head_norm(device, 65536, KV_HEADS, GOAL)
    for tokens, rotary_dim, interleaved in ((32768, DIM, False), (65536, DIM // 2, False), (32768, DIM, True)):
        yield _rotary(device, tokens, rotary_dim, interleaved, GOAL)
    for activation in ("silu", "gelu", "gelu_tanh"):
        yield _activation(device, 16384, INNER, activation, GOAL)
    yield _activation(device, 131072, 768, "silu", GOAL)  # of narrow experts
    for cache_dtype in (DTYPE, torch.float8_e4m3fn):
        yield _cache_write(device, 65536, cache_dtype, GOAL)
    yield _embedding(device, 16384, None)
    yield _norm(device, DECODE, 4096, None)
    yield _head_norm(device, DECODE, HEADS, None)
    yield _rotary(device, DECODE, DIM, False, None)
    yield _activation(device, DECODE, INNER, "silu", None)
    yield _cache_write(device, DECODE, DTYPE, None)
    yield _embedding(device, DECODE, None)


def _norm(device: torch.device, tokens: int, size: int, goal: float | None) -> Row:
    x, residual = _randn(device, tokens, size), _randn(device, tokens, size)
    weight = _randn(device, size)
    run = _norms(x, weight, 1e-6, residual)
    return Row("rms_norm + residual", f"{tokens} x {size}", run, bytes=4 * x.nbytes, goal=goal)


def _head_norm(device: torch.device, tokens: int, heads: int, goal: float | None) -> Row:
    x = _qkv(device, tokens)[:, :heads]
    run = _norms(x, _randn(device, DIM), 1e-6)
    return Row("rms_norm of heads", f"{tokens} x {heads} x {DIM}", run, bytes=2 * x.nbytes, goal=goal)


def _norms(*arguments: Any) -> dict[str, Callable[[], object]]:
    run = _both(rms_norm.rms_norm, torch_rms_norm.rms_norm, *arguments)
    if importlib.util.find_spec("flashinfer") is not None:
        from kernels.rms_norm import flashinfer

        run["flashinfer"] = functools.partial(flashinfer.rms_norm, *arguments)
    return run


def _rotary(device: torch.device, tokens: int, rotary_dim: int, interleaved: bool, goal: float | None) -> Row:
    x = _qkv(device, tokens)[:, : HEADS + KV_HEADS]
    table = cos_sin_table(*inverse_frequencies(rotary_dim, 5e5), 8192, DTYPE).to(device)
    positions = torch.arange(tokens, device=device) % 8192
    run = _both(rotary.rotary, torch_rotary.rotary, x, positions, table, interleaved)
    shape = f"{tokens} x {HEADS + KV_HEADS} x {rotary_dim}{' interleaved' if interleaved else ''}"
    moved = 2 * x.nbytes * rotary_dim // DIM + positions.nbytes + table[:tokens].nbytes
    return Row("rotary", shape, run, bytes=moved, goal=goal)


def _activation(device: torch.device, tokens: int, size: int, activation: str, goal: float | None) -> Row:
    gate_up = _randn(device, tokens, 2 * size)
    run = _both(gated_activation.gated_activation, torch_gated_activation.gated_activation, gate_up, activation)
    return Row("gated_activation", f"{tokens} x 2 x {size} {activation}", run, bytes=gate_up.nbytes * 3 // 2, goal=goal)


def _cache_write(device: torch.device, tokens: int, cache_dtype: torch.dtype, goal: float | None) -> Row:
    key, value = _qkv(device, tokens)[:, HEADS:].split(KV_HEADS, dim=1)
    blocks = -(-2 * tokens // 16)
    caches = [torch.zeros(blocks, 16, KV_HEADS, DIM, device=device, dtype=cache_dtype) for _ in range(2)]
    order = torch.randperm(blocks, device=device)[: -(-tokens // 16), None] * 16
    slots = (order + torch.arange(16, device=device)).flatten()[:tokens]  # whole blocks, scattered
    run = _both(cache_write.cache_write, torch_cache_write.cache_write, key, value, *caches, slots)
    moved = 2 * key.numel() * (DTYPE.itemsize + cache_dtype.itemsize) + slots.nbytes
    label = str(cache_dtype).removeprefix("torch.")
    return Row("cache_write", f"{tokens} x {KV_HEADS} x {DIM} {label}", run, bytes=moved, goal=goal)


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
