"""Latent attention at DeepSeek V3's shape: all of its 128 heads, and the 16 that each of eight GPUs has."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator

import torch
from torch import Tensor

from kernels.latent_cache import reference as torch_latent_cache
from kernels.latent_cache import triton as latent_cache
from kernels.mla_attention import SHAPES
from kernels.mla_attention import triton as mla_attention
from kernels.mla_attention.cases import Shape, batch
from kernels.rotary_cache.frequencies import cos_sin_table, inverse_frequencies
from tests.gpu.bench.row import Row

DEEPSEEK = SHAPES[0]
HEADS, HEADS_OF_EIGHT = 128, 16
SCALE = (DEEPSEEK.nope + DEEPSEEK.rope) ** -0.5


def rows(device: torch.device) -> Iterator[Row]:
    yield _decode(device, HEADS, 64, 4096, goal=0.70)
    yield _decode(device, HEADS_OF_EIGHT, 64, 4096, goal=0.70)
    yield _decode(device, HEADS, 8, 32768)
    yield _decode(device, HEADS_OF_EIGHT, 1, 8192)
    yield _prefill(device, [8192], [8192])
    yield _prefill(device, [2048], [32768])
    yield _prefill(device, [128] * 8, [8192] * 8)  # so short that they are absorbed
    yield _cache(device, 16384)
    yield _cache(device, 64)


def _decode(device: torch.device, heads: int, seqs: int, context: int, goal: float | None = None) -> Row:
    """With the two products around it: each latent, query, weight and result once."""
    made = batch(Shape((1,) * seqs, (context,) * seqs, heads, DEEPSEEK), torch.bfloat16, device)
    moved = 2 * seqs * (context * (DEEPSEEK.rank + DEEPSEEK.rope) + heads * (sum(DEEPSEEK) - DEEPSEEK.rank))
    run = {"triton": functools.partial(mla_attention.mla_attention, *made, SCALE)}
    label = f"{seqs} x {context}, {heads} heads"
    return Row("mla_attention decode", label, run, bytes=moved + made.kv_b.nbytes, goal=goal)


def _prefill(device: torch.device, queries: list[int], contexts: list[int]) -> Row:
    """Operations are those of the attention with its keys and values expanded; expanding them comes on top."""
    made = batch(Shape(tuple(queries), tuple(contexts), HEADS, DEEPSEEK), torch.bfloat16, device)
    seen = sum(new * length - new * (new - 1) / 2 for new, length in zip(queries, contexts, strict=True))
    flops = 2 * HEADS * seen * (DEEPSEEK.nope + DEEPSEEK.rope + DEEPSEEK.value)
    run: dict[str, Callable[[], object]] = {"triton": functools.partial(mla_attention.mla_attention, *made, SCALE)}
    if queries == contexts:
        run["torch"] = _sdpa(queries[0], device)
    label = f"{queries[0]} of {contexts[0]}" if len(queries) == 1 else f"{len(queries)} x {queries[0]} of {contexts[0]}"
    return Row("mla_attention prefill", label, run, flops=flops, ceiling="bf16")


def _sdpa(length: int, device: torch.device) -> Callable[[], object]:
    """torch's own attention over the same sequence, expanded already."""
    query, key = (
        torch.randn(1, HEADS, length, DEEPSEEK.nope + DEEPSEEK.rope, device=device, dtype=torch.bfloat16) for _ in "qk"
    )
    value = torch.randn(1, HEADS, length, DEEPSEEK.value, device=device, dtype=torch.bfloat16)

    def call() -> Tensor:
        return torch.nn.functional.scaled_dot_product_attention(query, key, value, is_causal=True)

    return call


def _cache(device: torch.device, tokens: int) -> Row:
    """What turns of the queries is read and written, and the latents."""
    rank, nope, rope, _ = DEEPSEEK
    query = torch.randn(tokens, HEADS, nope + rope, device=device, dtype=torch.bfloat16)
    latent = torch.randn(tokens, rank + rope, device=device, dtype=torch.bfloat16)
    weight = torch.randn(rank, device=device, dtype=torch.bfloat16)
    table = cos_sin_table(*inverse_frequencies(rope, 1e4), 8192, torch.bfloat16).to(device)
    positions = torch.arange(tokens, device=device) % 8192
    cache = torch.zeros(-(-tokens // 16), 16, rank + rope, device=device, dtype=torch.bfloat16)
    arguments = (query, latent, positions, table, weight, 1e-6, cache, torch.arange(tokens, device=device))
    run = {
        "triton": functools.partial(latent_cache.latent_cache, *arguments),
        "torch": functools.partial(torch_latent_cache.latent_cache, *arguments),
    }
    return Row("latent_cache", f"{tokens} x {HEADS} heads", run, bytes=4 * tokens * (HEADS * rope + rank + rope))
