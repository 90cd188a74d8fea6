"""Calls that launch every variant of the gated delta rule."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor

from kernels.cases import Case, randn
from kernels.causal_conv.cases import CHAINED_DRAFTS, chained, without_cache
from kernels.chains import places
from kernels.delta_rule import variants
from kernels.delta_rule.reference import Kept
from kernels.selection import Context

# Of results whose terms are rounded several times; the sums are in float32.
_TOLERANCES = {torch.bfloat16: 1.5e-2, torch.float16: 2e-3}


class Shape(NamedTuple):
    lens: tuple[int, ...]
    key_heads: int
    heads: int
    key_dim: int
    value_dim: int


class Inputs(NamedTuple):
    """Slices of one convolution's result and of one projection; some heads forget at once, some hardly ever."""

    query: Tensor
    key: Tensor
    value: Tensor
    a: Tensor
    b: Tensor
    a_log: Tensor
    dt_bias: Tensor

    def part(self, start: int, end: int) -> Inputs:
        """Of some of the tokens."""
        return Inputs._make([*(x[start:end] for x in self[:5]), *self[5:]])


def cases(arch: int, model: Context | None = None) -> Iterator[Case]:
    kinds = ((variant.arguments[0], int(variant.options["KEY_DIM"])) for variant in variants.variants(arch, model))
    for pointer, key_dim in dict.fromkeys(kinds):
        dtype = torch.bfloat16 if pointer == "*bf16" else torch.float16
        for shape in (
            Shape((1, 1, 1), 2, 6, key_dim, 128),
            Shape((1, 3, 130, 1, 64), 1, 2, key_dim, 48),
            Shape((65, 32), 2, 2, key_dim, 64),
        ):
            yield Case(f"{shape}, {dtype}", _call(shape, dtype), _TOLERANCES[dtype])
        for sizes in ((2, 6, key_dim, 128), (1, 2, key_dim, 48)):
            yield Case(f"chains of {sizes}, {dtype}", _call_chains(*sizes, dtype), _TOLERANCES[dtype])


def inputs(shape: Shape, dtype: torch.dtype, device: torch.device) -> Inputs:
    tokens, heads = sum(shape.lens), (shape.key_heads, shape.key_heads, shape.heads)
    dims = shape.key_dim, shape.key_dim, shape.value_dim
    widths = [count * dim for count, dim in zip(heads, dims, strict=True)]
    mixed = randn((tokens, sum(widths)), dtype, device, seed=1).split(widths, dim=1)
    query, key, value = (x.unflatten(1, (count, -1)) for x, count in zip(mixed, heads, strict=True))
    a, b = randn((tokens, 2 * shape.heads), dtype, device, seed=2).split(shape.heads, dim=1)
    a_log, dt_bias = torch.linspace(-7, 3, shape.heads), torch.linspace(1, -1, shape.heads)
    return Inputs(query, key, value, a, b, a_log.to(device), dt_bias.to(device))


def states(shape: Shape, count: int, device: torch.device) -> Tensor:
    size = shape.heads * shape.key_dim * shape.value_dim
    rows = randn((count, size + 8), torch.float32, device, seed=3)[:, :size]  # a row holds more than this state
    return rows.view(count, shape.heads, shape.key_dim, shape.value_dim)


def kept_of(shape: Shape, count: int, num_drafts: int, dtype: torch.dtype, device: torch.device) -> Kept:
    """In rows that hold all of it, and more."""
    sizes = (shape.key_heads * shape.key_dim, shape.heads * shape.value_dim, 2 * shape.heads)
    number = places(num_drafts)
    padded = [-(-number * size // 8) * 8 for size in sizes]
    rows = randn((count, sum(padded) + 8), dtype, device, seed=5)
    keys, values, gates = (
        part[:, : number * size].unflatten(1, (number, size))
        for part, size in zip(rows.split([*padded, 8], dim=1)[:3], sizes, strict=True)
    )
    dims = (shape.key_dim, shape.value_dim, shape.heads)
    return Kept(*(each.unflatten(2, (-1, dim)) for each, dim in zip((keys, values, gates), dims, strict=True)))


def _call_chains(
    key_heads: int, heads: int, key_dim: int, value_dim: int, dtype: torch.dtype
) -> Callable[..., list[Tensor]]:
    """Beside a prefill."""

    def run(delta_rule: Callable[..., Any], device: torch.device) -> list[Tensor]:
        chains, metadata = chained(device)
        shape = Shape(tuple(metadata.query_lens), key_heads, heads, key_dim, value_dim)
        count = len(shape.lens)
        state, kept = states(shape, count, device), kept_of(shape, count, CHAINED_DRAFTS, dtype, device)
        rows = torch.arange(count, device=device).flip(0)
        out = delta_rule(*inputs(shape, dtype, device), state, rows, metadata, chains, kept)
        return [out, state, *(each.clone() for each in kept)]

    return run


def _call(shape: Shape, dtype: torch.dtype) -> Callable[..., list[Tensor]]:
    def run(delta_rule: Callable[..., Any], device: torch.device) -> list[Tensor]:
        count = len(shape.lens)
        state = states(shape, count + 2, device)
        rows = torch.arange(count + 1, 1, -1, device=device)
        return [delta_rule(*inputs(shape, dtype, device), state, rows, without_cache(shape.lens, device)), state]

    return run
