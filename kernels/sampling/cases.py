"""Calls that launch every sampling kernel, with uniform numbers that are not near a boundary between two tokens."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from kernels.cases import Case, randn
from kernels.sampling import variants
from kernels.sampling.batch import Row, pack
from kernels.sampling.reference import sample
from kernels.selection import Context

_CPU = torch.device("cpu")
_SEEN = np.array([[3, 7, 500, 999], [0, 2, 1, 5]], dtype=np.int32)
_EDITED = [
    Row(seen=_SEEN, repetition=1.5),
    Row(0.7, seen=_SEEN, presence=0.5, frequency=0.25, repetition=0.8),
    Row(1.0, top_k=30, seen=_SEEN, presence=-2.0, forbidden=[3, 4]),
    Row(forbidden=range(990)),
    Row(forbidden=range(1000)),
    Row(0.7, seen=_SEEN, repetition=1e-40),
    Row(),
]
_BIASED = [
    Row(biases={7: 100.0, 3: -100.0}),
    Row(0.7, biases=dict.fromkeys(range(0, 1000, 3), -1.5)),
    Row(0.9, top_k=20, seen=_SEEN, presence=0.5, biases={3: 4.0, 999: -2.0}),
    Row(forbidden=[7], biases={7: 100.0, 8: 90.0}),
    Row(),
    Row(1.0, top_p=0.8, biases={0: 5.0}),
]
_RESTRICTED = [Row(), Row(0.7), Row(0.8, top_k=20, top_p=0.95), Row(), Row(1.0, min_p=0.05), Row(1.2)]
_TRUNCATED = [
    Row(0.8, top_k=1),
    Row(0.8, top_k=20, top_p=0.95),  # what Qwen3 asks for
    Row(0.6, top_p=0.9),  # and Llama 3
    Row(1.0, min_p=0.05),
    Row(1.0, top_k=300, top_p=0.7, min_p=0.01),
    Row(1.0, top_k=1 << 20, top_p=0.2),
    Row(1e-30, top_p=0.5),
    Row(),
    Row(0.9),
]


def cases(arch: int, model: Context | None = None) -> Iterator[Case]:
    yield Case("greedy", _call(4097, [Row()] * 3, scale=3), 0)
    for dtype in variants.DTYPES if model is None else (model.dtype,):
        case = _call(8195, [Row()] * 5, scale=3, damaged=True, dtype=getattr(torch, dtype))
        yield Case(f"greedy {dtype}, some not numbers", case, 0)
    yield Case("greedy among equals", _call(8192, [Row()] * 2, scale=1, step=2.0), 0)
    yield Case("greedy with logprobs", _call(1003, [Row()] * 2, scale=3, logprobs=5), 1e-5)
    yield Case("edited", _call(1000, _EDITED, scale=3), 0)
    yield Case("edited with logprobs", _call(1000, _EDITED, scale=3, logprobs=0), 1e-5)
    yield Case("biased", _call(1000, _BIASED, scale=3), 0)
    yield Case("biased with logprobs", _call(1000, _BIASED, scale=3, logprobs=2), 1e-5)
    yield Case("biased and restricted", _call(1000, _BIASED, scale=3, restricted=True), 0)
    yield Case("restricted", _call(4133, _RESTRICTED, scale=3, restricted=True), 0)
    yield Case("restricted with logprobs", _call(4133, _RESTRICTED, scale=3, restricted=True, logprobs=3), 1e-5)
    yield Case("restricted and edited", _call(1000, _EDITED, scale=3, restricted=True), 0)
    yield Case("restricted, some not numbers", _call(4100, _TRUNCATED, scale=3, restricted=True, damaged=True), 0)
    yield Case("plain", _call(32003, [Row(0.7), Row(), Row(1.3), Row(1e-45)], scale=3), 0)
    yield Case("truncated", _call(5003, _TRUNCATED, scale=3), 0)
    yield Case("truncated among equals", _call(5003, _TRUNCATED, scale=3, step=0.5), 0)
    yield Case(
        "truncated, all tokens much alike", _call(9001, [Row(0.5, top_p=0.99), Row(1.0, top_k=8500, top_p=0.97)]), 0
    )
    yield Case("some not numbers", _call(4100, _TRUNCATED, scale=3, damaged=True), 0)
    yield Case("edited, some not numbers", _call(1000, _EDITED, scale=3, damaged=True), 0)


def _call(
    vocab: int,
    rows: Sequence[Row],
    *,
    scale: float = 0.1,
    step: float = 0.0,
    logprobs: int | None = None,
    damaged: bool = False,
    restricted: bool = False,
    dtype: torch.dtype = torch.float32,
) -> Callable[..., list[Tensor]]:
    """`step`: round logits to multiples of it, so that many are equal. `restricted`: every other row may sample a few
    tokens only, and the last of them none."""

    def run(function: Callable[..., Any], device: torch.device) -> list[Tensor]:
        logits = randn((len(rows), vocab), torch.float32, _CPU, seed=vocab) * scale
        if step:
            logits = (logits / step).round() * step
        allowed = _allowed(len(rows), vocab) if restricted else None
        steady = _steady(logits, rows, allowed)
        if damaged:
            logits[0, vocab - 1], logits[2, 0], logits[3] = torch.nan, torch.inf, -torch.inf
        packed = pack(steady, device, logprobs, allowed=None if allowed is None else allowed.to(device))
        result = function(logits.to(device, dtype), packed)
        sampled = result.finite & result.samplable
        token_ids = result.token_ids.masked_fill(~sampled, -1)  # else it means nothing
        named = [result.logprobs, result.top_logprobs] if logprobs is not None else []
        return [token_ids, result.finite.to(torch.int32), sampled.to(torch.int32), *named]

    return run


def _allowed(rows: int, vocab: int) -> Tensor:
    """[G, 1 + ceil(vocab / 32)] int32"""
    restricted = torch.arange(0, rows, 2, dtype=torch.int32)
    size = (len(restricted), -(-vocab // 32))
    bits = [
        torch.randint(-(1 << 31), 1 << 31, size, generator=torch.Generator().manual_seed(seed)) for seed in range(3)
    ]
    some = (bits[0] & bits[1] & bits[2]).to(torch.int32)
    some[-1] = 0
    return torch.cat([restricted[:, None], some], dim=1)


def _steady(logits: Tensor, rows: Sequence[Row], allowed: Tensor | None) -> list[Row]:
    """The rows, each with a uniform number that samples what its neighbours within 1e-5 sample."""
    numbers = torch.rand(50, len(rows), generator=torch.Generator().manual_seed(1)).tolist()
    found: list[Row | None] = [None] * len(rows)
    for uniforms in numbers:
        tried = [row._replace(uniform=uniform) for row, uniform in zip(rows, uniforms, strict=True)]
        ends = [
            sample(
                logits.clone(),
                pack([row._replace(uniform=row.uniform + off) for row in tried], _CPU, allowed=allowed),
            ).token_ids
            for off in (-1e-5, 1e-5)
        ]
        for index, same in enumerate((ends[0] == ends[1]).tolist()):
            if same and found[index] is None:
                found[index] = tried[index]
        if None not in found:
            break
    return [row for row in found if row is not None]
