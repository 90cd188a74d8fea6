"""Calls that launch every variant of causal convolution."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any, Final

import torch
from torch import Tensor

from kernels.cases import TOLERANCES, Case, randn
from kernels.causal_conv import variants
from kernels.chains import places
from kernels.chains.rounds import Chains
from kernels.paged_attention.metadata import AttentionMetadata
from kernels.selection import Context


def cases(arch: int, model: Context | None = None) -> Iterator[Case]:
    for dtype in dict.fromkeys(variant.arguments[0] for variant in variants.variants(arch, model)):
        torch_dtype = torch.bfloat16 if dtype == "*bf16" else torch.float16
        for lens in ((1, 1, 1), (1, 2, 3, 16, 1, 37), (5, 48)):
            yield Case(f"{lens}, {torch_dtype}", _call(lens, torch_dtype), TOLERANCES[torch_dtype])
        yield Case(f"chains, {torch_dtype}", _call_chains(torch_dtype), TOLERANCES[torch_dtype])


def _call(lens: Sequence[int], dtype: torch.dtype) -> Callable[..., list[Tensor]]:
    def run(causal_conv: Callable[..., Any], device: torch.device) -> list[Tensor]:
        channels = variants.BLOCK + 24  # a second block that is not full
        x = randn((sum(lens), channels + 16), dtype, device, seed=1)[:, 8:-8]  # from the fused projection
        weight = randn((channels, variants.WIDTH), dtype, device, seed=2)
        size = channels * (variants.WIDTH - 1)
        rows = randn((len(lens) + 2, size + 8), dtype, device, seed=3)[:, :size]  # a row holds more than this state
        state = rows.view(-1, channels, variants.WIDTH - 1)
        rows = torch.arange(len(lens) + 1, 1, -1, device=device)
        return [causal_conv(x, weight, state, rows, without_cache(lens, device)), state]

    return run


def _call_chains(dtype: torch.dtype) -> Callable[..., list[Tensor]]:
    """Beside a prefill."""

    def run(causal_conv: Callable[..., Any], device: torch.device) -> list[Tensor]:
        chains, metadata = chained(device)
        tokens, channels = len(metadata.slot_mapping), variants.BLOCK + 24
        x = randn((tokens, channels), dtype, device, seed=1)
        weight = randn((channels, variants.WIDTH), dtype, device, seed=2)
        state = randn((tokens, channels, variants.WIDTH - 1), dtype, device, seed=3)
        kept = randn((tokens, places(CHAINED_DRAFTS), channels), dtype, device, seed=4)
        rows = torch.arange(len(metadata.query_lens), device=device).flip(0)
        return [causal_conv(x, weight, state, rows, metadata, chains, kept), state, kept]

    return run


CHAINED_DRAFTS: Final = 3  # at most, of the chains below


def chained(device: torch.device) -> tuple[Chains, AttentionMetadata]:
    """Chains of all lengths behind as many accepted drafts, and a prefill."""
    lens = (1, 4, 2, 3, 1, 4)
    accepted = (0, 2, 3, 0, 1, 3)
    contexts = (9, 5, 4, 70, 2, 31)
    of_rows = [(left if left == count else 0) for count in lens for left in range(count, 0, -1)]
    accepted_of_rows = [each for count, each in zip(lens, accepted, strict=True) for _ in range(count)]
    lengths = [context + place for count, context in zip(lens, contexts, strict=True) for place in range(count)]
    metadata = without_cache([*[1] * sum(lens), 5], device)
    seq_lens = torch.tensor([*lengths, 5], dtype=torch.int32, device=device)
    numbers = (torch.tensor([*each, 0], dtype=torch.int32, device=device) for each in (of_rows, accepted_of_rows))
    return Chains(*numbers), replace(metadata, seq_lens=seq_lens)


def without_cache(query_lens: Sequence[int], device: torch.device) -> AttentionMetadata:
    """The geometry of sequences that have no cache: those of one token, which come first, decode."""
    count = len(query_lens)
    return AttentionMetadata(
        query_lens=list(query_lens),
        context_lens=list(query_lens),
        num_decodes=next((i for i, length in enumerate(query_lens) if length != 1), count),
        query_start_loc=torch.tensor([0, *query_lens]).cumsum(0).to(torch.int32).to(device),
        seq_lens=torch.tensor(query_lens, dtype=torch.int32, device=device),
        block_tables=torch.zeros((count, 1), dtype=torch.int32, device=device),
        slot_mapping=torch.zeros(sum(query_lens), dtype=torch.int64, device=device),
    )
