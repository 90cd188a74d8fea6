"""Calls that launch every variant of latent attention."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor

from kernels.cases import TOLERANCES, Case, randn
from kernels.mla_attention import PROGRAMS_TOGETHER, SHAPES, LatentShape, variants
from kernels.paged_attention.cases import place
from kernels.paged_attention.metadata import AttentionMetadata
from kernels.selection import Context


class Shape(NamedTuple):
    """`queries` and `contexts` are tokens of each sequence, new and in all; sequences that decode come first."""

    queries: tuple[int, ...]
    contexts: tuple[int, ...]
    heads: int
    latent: LatentShape
    block_size: int = 16


class Batch(NamedTuple):
    query: Tensor  # [T, heads, nope + rope], the first heads of a wider tensor
    cache: Tensor
    kv_b: Tensor
    metadata: AttentionMetadata


def cases(arch: int, model: Context | None = None) -> Iterator[Case]:
    for variant in variants.variants(arch, model):
        kernel = variant.kernel.partition(":")[2]
        if kernel in ("merge_kernel", "gather_kernel"):
            continue  # launched by what is below
        constants = dict(variant.constants)
        dtype = torch.bfloat16 if variant.arguments[0] == "*bf16" else torch.float16
        if kernel == "hopper_decode_kernel":
            latent = SHAPES[0] if model is None else LatentShape(*model.latent_shape)
            # One part of several programs, parts that are merged, and all parts of a sequence in one program.
            shapes = [
                Shape((1,) * 4 + (5,), (1, 531, 90, 1300, 26), 67, latent),
                Shape((1,) * 3, (1025, 64, 4000), 64, latent, 64),
                Shape((1,) * PROGRAMS_TOGETHER, (70,) * (PROGRAMS_TOGETHER - 2) + (2200, 1090), 64, latent),
            ]
        elif kernel == "prefill_kernel":
            latent = LatentShape(*(int(constants[name]) for name in ("RANK", "NOPE", "ROPE", "VALUE")))
            # Whole, and a chunk of a longer context; the first not of whole tiles, the second behind blocks of others.
            shapes = [Shape((450, 400), (450, 517), 3, latent)]
        else:
            latent = SHAPES[0] if model is None else LatentShape(*model.latent_shape)
            rows = int(constants["ROWS"])
            largest = rows == variants.decode_tiles(arch)[-1].rows
            heads = (rows, *((rows + 3,) if largest else ()), *((1,) if rows == 16 else ()))
            # Blocks that the kernel of its own for so many heads does not serve.
            block_size = 8 if variants.divides_warps(arch, variants.decode_tile(arch, rows)) else 16
            shapes = [Shape((1, 1, 1, 5), (1, 531, 90, 26), count, latent, block_size) for count in heads]
        for shape in shapes:
            yield Case(f"{kernel} {shape} {dtype}", _call(shape, dtype), TOLERANCES[dtype])


def batch(shape: Shape, dtype: torch.dtype, device: torch.device, *, scatter: bool = True) -> Batch:
    """Random numbers in random blocks (`scatter`), and NaN in all slots that no sequence owns."""
    rank, nope, rope, value = shape.latent
    placed = place(shape.queries, shape.contexts, shape.block_size, device, scatter=scatter)
    cache = placed.cache((rank + rope,), dtype, seed=21)
    wide = randn((sum(shape.queries), shape.heads + 1, nope + rope), dtype, device, seed=22)
    # Keys and values of the size of their latents.
    kv_b = (randn((shape.heads, nope + value, rank), torch.float32, device, seed=23) * rank**-0.5).to(dtype)
    return Batch(wide[:, : shape.heads], cache, kv_b, placed.metadata)


def _call(shape: Shape, dtype: torch.dtype) -> Callable[..., list[Tensor]]:
    def run(mla_attention: Callable[..., Any], device: torch.device) -> list[Tensor]:
        made = batch(shape, dtype, device)
        return [mla_attention(*made, (shape.latent.nope + shape.latent.rope) ** -0.5)]

    return run
