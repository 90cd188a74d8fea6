"""Calls that launch every variant of sparse latent attention."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor

from kernels.cases import TOLERANCES, Case
from kernels.indexer.chosen import Chosen
from kernels.mla_attention import LatentShape, split
from kernels.mla_attention.cases import Shape as Latents
from kernels.mla_attention.cases import batch as latents
from kernels.selection import Context
from kernels.sparse_mla import variants


class Batch(NamedTuple):
    query: Tensor  # [Q, heads, nope + rope], the first heads of a wider tensor
    cache: Tensor
    kv_b: Tensor
    chosen: Chosen


def cases(arch: int, model: Context | None = None) -> Iterator[Case]:
    for variant in variants.variants(arch, model):
        if variant.op != "sparse_mla":
            continue  # launched by what is below
        constants = dict(variant.constants)
        rows, rank, rope = (int(constants[name]) for name in ("ROWS", "RANK", "ROPE"))
        dtype = torch.bfloat16 if variant.arguments[0] == "*bf16" else torch.float16
        heads = rows + 3 if rows == variants.tiles(arch)[-1].rows else rows
        shape = LatentShape(rank, 128, rope, 128) if model is None else LatentShape(*model.latent_shape)
        # Decodes of one part and of two, and a prefill's queries behind them.
        contexts = (1, split(heads) + 160, 90, 26)
        yield Case(f"{heads} heads {shape} {dtype}", _call(contexts, heads, shape, dtype), TOLERANCES[dtype])


def batch(
    contexts: tuple[int, ...], heads: int, shape: LatentShape, top_k: int, dtype: torch.dtype, device: torch.device
) -> Batch:
    """A query for each context, which sees some of its tokens, at most `top_k`; slots that nobody owns hold NaN."""
    made = latents(Latents((1,) * len(contexts), contexts, heads, shape), dtype, device)
    slots = torch.full((len(contexts), top_k), -1, dtype=torch.int32)
    counts = torch.tensor([min(length, top_k) for length in contexts], dtype=torch.int32)
    tables, size = made.metadata.block_tables.cpu(), made.cache.shape[1]
    order = torch.Generator().manual_seed(41)
    for row, (length, count) in enumerate(zip(contexts, counts.tolist(), strict=True)):
        token = torch.randperm(length, generator=order)[:count].sort().values
        slots[row, :count] = tables[row, token // size] * size + (token % size).int()
    return Batch(made.query, made.cache, made.kv_b, Chosen(slots.to(device), counts.to(device)))


def _call(contexts: tuple[int, ...], heads: int, shape: LatentShape, dtype: torch.dtype) -> Callable[..., list[Tensor]]:
    def run(sparse_mla: Callable[..., Any], device: torch.device) -> list[Tensor]:
        top_k = split(heads) + 70
        made = batch(contexts, heads, shape, top_k, dtype, device)
        scale = (shape.nope + shape.rope) ** -0.5
        return [sparse_mla(*made, scale, 2)]

    return run
