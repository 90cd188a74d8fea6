"""What a model is called with: one batch of tokens from several sequences, laid end to end."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from kernels.paged_attention.metadata import AttentionMetadata


@dataclass(frozen=True, slots=True)
class ForwardBatch:
    """T tokens of S sequences; `logits_rows` picks those whose next token is wanted."""

    token_ids: Tensor  # [T] int64
    positions: Tensor  # [T] int64
    attention: AttentionMetadata
    logits_rows: Tensor  # [D] int64, rows of the batch


@dataclass(frozen=True, slots=True)
class LayerCache:
    """The paged cache of one layer."""

    key: Tensor  # [blocks, block_size, kv_heads, head_dim]
    value: Tensor  # the same
