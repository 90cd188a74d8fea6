"""A batch as a CUDA graph holds it: padded between decodes and prefills, and behind both."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from kernels.paged_attention.metadata import AttentionMetadata


class Padded(NamedTuple):
    """`rows` and `places` are where the batch's own tokens and sequences lie."""

    metadata: AttentionMetadata
    rows: Tensor
    places: Tensor

    def tokens(self, given: Tensor) -> Tensor:
        """`given` [T, ...] with numbers in the rows of padding that would show."""
        wide = torch.full((self.metadata.slot_mapping.numel(), *given.shape[1:]), 7.0).to(given.dtype)
        wide[self.rows] = given
        return wide

    def sequences(self, given: Tensor, padding: int) -> Tensor:
        """`given` [S] with `padding` at all other places."""
        wide = torch.full((len(self.metadata.seq_lens),), padding, dtype=given.dtype)
        wide[self.places] = given
        return wide


def padded(batch: AttentionMetadata, decodes: int, prefills: int, tokens: int) -> Padded:
    """`batch` with so many decodes, and so many prefills of so many tokens."""
    own, others = batch.num_decodes, len(batch.query_lens) - batch.num_decodes
    of_prefills = sum(batch.query_lens[own:])
    lens = batch.query_lens[:own] + [1] * (decodes - own)
    lens += batch.query_lens[own:] + [0] * (prefills - others) + [tokens - of_prefills]
    contexts = batch.context_lens[:own] + [1] * (decodes - own)
    contexts += batch.context_lens[own:] + [0] * (prefills - others) + [tokens - of_prefills]
    places = torch.tensor([*range(own), *range(decodes, decodes + others)])
    tables = torch.zeros((len(lens), max(batch.block_tables.shape[1], tokens)), dtype=torch.int32)
    tables[places, : batch.block_tables.shape[1]] = batch.block_tables
    rows = torch.tensor([*range(own), *range(decodes, decodes + of_prefills)])
    slots = torch.full((decodes + tokens,), -1)
    slots[rows] = batch.slot_mapping
    metadata = AttentionMetadata(
        query_lens=[1] * decodes + [tokens] * (prefills + 1),
        context_lens=[max(*batch.context_lens, tokens)] * len(lens),
        num_decodes=decodes,
        query_start_loc=torch.tensor([0, *lens]).cumsum(0).to(torch.int32),
        seq_lens=torch.tensor(contexts, dtype=torch.int32),
        block_tables=tables,
        slot_mapping=slots,
        bounds=True,
    )
    return Padded(metadata, rows, places)
