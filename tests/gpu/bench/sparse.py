"""Sparse attention at the shapes of DeepSeek V3.2 (128 heads, an indexer of 64) and GLM 5 (64 and 32): what chooses
tokens, and what attends to them."""

from __future__ import annotations

import functools
from collections.abc import Iterator

import torch

from kernels.index_cache import triton as index_cache
from kernels.index_cache.norm import KeyNorm
from kernels.indexer import key_bytes
from kernels.indexer import triton as indexer
from kernels.indexer.cases import Shape
from kernels.indexer.cases import batch as queries_and_keys
from kernels.mla_attention import SHAPES
from kernels.rotary_cache.frequencies import cos_sin_table, inverse_frequencies
from kernels.sparse_mla import triton as sparse_mla
from kernels.sparse_mla.cases import batch as queries_and_latents
from tests.gpu.bench.row import Row

TOP_K, DIM = 2048, 128
DEEPSEEK, GLM = SHAPES


def rows(device: torch.device) -> Iterator[Row]:
    yield _attend(device, 128, 64, 8192, goal=0.70)
    yield _attend(device, 64, 64, 8192, goal=0.70)
    yield _attend(device, 16, 64, 8192)
    yield _attend(device, 128, 1, 8192)
    yield _attend(device, 128, 2048, 8192, prefill=True)
    yield _choose(device, 64, (1,) * 64, (8192,) * 64, goal=0.60)
    yield _choose(device, 32, (1,) * 64, (8192,) * 64, goal=0.60)
    yield _choose(device, 64, (1,), (131072,))
    yield _choose(device, 64, (2048,), (32768,))
    yield _cache(device, 8192, 64)
    yield _cache(device, 64, 64)


def _attend(
    device: torch.device, heads: int, queries: int, context: int, *, prefill: bool = False, goal: float | None = None
) -> Row:
    """With the two products around it: each chosen latent, query, weight and result once. A prefill's operations."""
    shape = GLM if heads == 64 else DEEPSEEK
    made = queries_and_latents((context,) * (8 if prefill else queries), heads, shape, TOP_K, torch.bfloat16, device)
    if prefill:  # many queries of few contexts
        query, slots, counts = (x.repeat_interleave(queries // 8, dim=0) for x in (made.query, *made.chosen))
        made = made._replace(query=query, chosen=type(made.chosen)(slots, counts))
    entry = shape.rank + shape.rope
    moved = 2 * queries * (TOP_K * entry + heads * (sum(shape) - shape.rank)) + made.kv_b.nbytes
    scale = (shape.nope + shape.rope) ** -0.5
    run = {"triton": functools.partial(sparse_mla.sparse_mla, *made, scale, 0 if prefill else queries)}
    label = f"{queries} x {TOP_K} of {context}, {heads} heads"
    if prefill:
        flops = 2.0 * queries * heads * TOP_K * (entry + shape.rank)
        return Row("sparse_mla prefill", label, run, flops=flops, ceiling="bf16")
    return Row("sparse_mla decode", label, run, bytes=moved, goal=goal)


def _choose(
    device: torch.device, heads: int, queries: tuple[int, ...], contexts: tuple[int, ...], goal: float | None = None
) -> Row:
    """Scores and choice: each key once for all decodes, or a prefill's products."""
    made = queries_and_keys(Shape(queries, contexts, heads, TOP_K), device)
    run = {"triton": functools.partial(indexer.indexer, *made, TOP_K)}
    if max(queries) > 1:
        seen = sum(new * length - new * (new - 1) / 2 for new, length in zip(queries, contexts, strict=True))
        label = f"{queries[0]} of {contexts[0]}, {heads} heads"
        return Row("indexer prefill", label, run, flops=2 * heads * DIM * seen, ceiling="fp8")
    moved = sum(contexts) * key_bytes(DIM) + made.query.nbytes + len(queries) * TOP_K * 4
    return Row("indexer decode", f"{len(queries)} x {contexts[0]}, {heads} heads", run, bytes=moved, goal=goal)


def _cache(device: torch.device, tokens: int, heads: int) -> Row:
    """Queries and keys are read in bfloat16 and written in 8 bits."""
    query = torch.randn(tokens, heads, DIM, device=device, dtype=torch.bfloat16)
    key = torch.randn(tokens, DIM, device=device, dtype=torch.bfloat16)
    weights = torch.randn(tokens, heads, device=device)
    norm = KeyNorm(torch.randn(DIM, device=device), torch.randn(DIM, device=device), 1e-6)
    table = cos_sin_table(*inverse_frequencies(64, 1e4), 8192, torch.bfloat16).to(device)
    slots = torch.arange(tokens, device=device)
    cache = torch.zeros((-(-tokens // 16), 16 * key_bytes(DIM)), dtype=torch.uint8, device=device)
    run = {
        "triton": functools.partial(
            index_cache.index_cache, query, key, weights, slots % 8192, table, norm, cache, slots, False
        )
    }
    return Row("index_cache", f"{tokens} x {heads} heads", run, bytes=tokens * (heads + 1) * (3 * DIM + 4))
