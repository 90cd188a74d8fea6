"""What a model is called with: one batch of tokens from several sequences, laid end to end."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from torch import Tensor

from kernels.chains.rounds import Chains
from kernels.indexer.chosen import Chosen
from kernels.paged_attention.metadata import AttentionMetadata


@dataclass(slots=True)
class Carried:
    """What a layer leaves to those behind it, beside its result."""

    chosen: Chosen | None = None  # by the last indexer
    for_head: Tensor | None = None  # [T, ...], where a head for drafts is given something else than the model's result


@dataclass(frozen=True, slots=True)
class ForwardBatch:
    """T tokens of S sequences. `windowed` says where they lie in the pools of layers with such a window, `attention`
    where they do in all others. `slots` are where the sequences run, which are their rows in every `StateCache`;
    padding has the row behind those of all sequences. `chains` are there where drafts may be among those that decode,
    in a model with states."""

    token_ids: Tensor  # [T] int64
    positions: Tensor  # [T] int64
    attention: AttentionMetadata
    slots: Tensor  # [S] int64
    carried: Carried = field(default_factory=Carried)
    windowed: Mapping[int | None, AttentionMetadata] = field(default_factory=dict)
    chains: Chains | None = None

    def attention_of(self, window: int | None) -> AttentionMetadata:
        """Where a layer with that window has its pages."""
        return self.windowed.get(window, self.attention)


@dataclass(frozen=True, slots=True)
class KeyValueCache:
    """The pages of a layer with keys and values."""

    key: Tensor  # [blocks, block_size, kv_heads, head_dim]
    value: Tensor  # the same

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        return self.key, self.value


@dataclass(frozen=True, slots=True)
class LatentCache:
    """The pages of a layer with latent attention, and those of its indexer where it has one."""

    latent: Tensor  # [blocks, block_size, rank + rope_dim]
    index: Tensor | None = None  # as `kernels.index_cache` has them

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        return (self.latent,) if self.index is None else (self.latent, self.index)


@dataclass(frozen=True, slots=True)
class StateCache:
    """The states of a recurrent layer: a row for each slot, one for padding, then rows for copies."""

    tensors: tuple[Tensor, ...]  # of each part [rows, *shape]


@dataclass(frozen=True, slots=True)
class CompressedCache:
    """Of a layer with a window: a row for each slot as in `StateCache`, and pages of compressed entries where it has
    such. Of these and of its indexer's keys `tails` holds what the next ones are made of."""

    window: Tensor  # as `kernels.compressed_attention` has it
    tails: tuple[Tensor, ...]  # of entries, of keys; as `kernels.compressor` has them
    pages: tuple[Tensor, ...]  # the same

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        return self.window, *self.tails, *self.pages


LayerCache = KeyValueCache | LatentCache | StateCache | CompressedCache
