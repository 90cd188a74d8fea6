"""Attention at serving shapes: Llama 3 8B's heads (32 over 8 of 128) and an FP8 cache."""

from __future__ import annotations

import functools
import importlib.util
from collections.abc import Callable, Iterator

import torch
from torch import Tensor

from kernels.paged_attention import triton
from kernels.paged_attention.cases import Batch, Shape, batch
from tests.gpu.bench.row import Row

HEADS, KV_HEADS, DIM = 32, 8, 128


def rows(device: torch.device) -> Iterator[Row]:
    yield _decode(device, 64, 4096, torch.bfloat16, goal=0.80)
    yield _decode(device, 64, 4096, torch.float8_e4m3fn)
    yield _decode(device, 8, 32768, torch.bfloat16)
    yield _decode(device, 1, 8192, torch.bfloat16)
    yield _prefill(device, [8192] * 2, goal=0.60)
    yield _prefill(device, [16384], goal=None)
    yield _prefill(device, [2048] * 8, goal=None)


def _decode(device: torch.device, seqs: int, context: int, cache_dtype: torch.dtype, goal: float | None = None) -> Row:
    shape = Shape((1,) * seqs, (context,) * seqs, HEADS, KV_HEADS, DIM)
    made = batch(shape, torch.bfloat16, cache_dtype, device)
    moved = 2 * seqs * context * KV_HEADS * DIM * cache_dtype.itemsize
    label = "fp8 cache" if cache_dtype.itemsize == 1 else "bf16"
    return Row("paged_attention decode", f"{seqs} x {context} {label}", _calls(made), bytes=moved, goal=goal)


def _prefill(device: torch.device, lens: list[int], goal: float | None) -> Row:
    shape = Shape(tuple(lens), tuple(lens), HEADS, KV_HEADS, DIM)
    made = batch(shape, torch.bfloat16, torch.bfloat16, device)
    flops = sum(4 * HEADS * DIM * n * (n + 1) / 2 for n in lens)
    return Row(
        "paged_attention prefill", " + ".join(map(str, lens)) if len(lens) < 4 else f"{len(lens)} x {lens[0]}",
        _calls(made) | {"torch": _sdpa(lens, device)}, flops=flops, ceiling="bf16", goal=goal,
    )  # fmt: skip


def _calls(made: Batch) -> dict[str, Callable[[], object]]:
    calls: dict[str, Callable[[], object]] = {"triton": functools.partial(triton.paged_attention, *made, DIM**-0.5)}
    if importlib.util.find_spec("flashinfer") is not None:
        from kernels.paged_attention import flashinfer

        calls["flashinfer"] = functools.partial(flashinfer.paged_attention, *made, DIM**-0.5)
    return calls


def _sdpa(lens: list[int], device: torch.device) -> Callable[[], object]:
    """torch's own attention over the same sequences, with keys and values that lie together already."""
    query = torch.randn(len(lens), HEADS, lens[0], DIM, device=device, dtype=torch.bfloat16)
    key, value = (torch.randn(len(lens), KV_HEADS, lens[0], DIM, device=device, dtype=torch.bfloat16) for _ in "kv")

    def call() -> Tensor:
        return torch.nn.functional.scaled_dot_product_attention(query, key, value, is_causal=True, enable_gqa=True)

    return call
