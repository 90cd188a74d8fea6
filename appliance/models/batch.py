"""What a model is called with: one batch of tokens from several sequences, laid end to end."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from kernels.paged_attention.metadata import AttentionMetadata


@dataclass(frozen=True, slots=True)
class ForwardBatch:
    """T tokens of S sequences."""

    token_ids: Tensor  # [T] int64
    positions: Tensor  # [T] int64
    attention: AttentionMetadata


@dataclass(frozen=True, slots=True)
class LayerCache:
    """The paged cache of one layer."""

    key: Tensor  # [blocks, block_size, kv_heads, head_dim]
    value: Tensor  # the same
