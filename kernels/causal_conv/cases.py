"""Calls that launch every variant of causal convolution."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from kernels.cases import TOLERANCES, Case, randn
from kernels.causal_conv import variants
from kernels.paged_attention.metadata import AttentionMetadata
from kernels.selection import Context


def cases(arch: int, model: Context | None = None) -> Iterator[Case]:
    for dtype in dict.fromkeys(variant.arguments[0] for variant in variants.variants(arch, model)):
        torch_dtype = torch.bfloat16 if dtype == "*bf16" else torch.float16
        for lens in ((1, 1, 1), (1, 2, 3, 16, 1, 37), (5, 48)):
            yield Case(f"{lens}, {torch_dtype}", _call(lens, torch_dtype), TOLERANCES[torch_dtype])


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
