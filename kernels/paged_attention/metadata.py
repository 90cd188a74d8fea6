"""Where each sequence of a batch lies in the batch and in the cache."""

from __future__ import annotations

from dataclasses import dataclass, replace

from torch import Tensor


@dataclass(frozen=True, slots=True)
class AttentionMetadata:
    """The geometry of one batch of S sequences and T query tokens; sequences that decode one token come first.

    For layers with a window, contexts and tables may begin at any block before the first token that some query sees:
    positions are counted from the context's end.

    `query_lens` and `context_lens` are on the host, so that a backend can plan without waiting for the device; a
    context length counts all tokens that are visible to the last query token, itself included.

    Where they are `bounds`, as of a CUDA graph, which is replayed for other sequences than it was captured with, a
    sequence has at most so many query tokens and a context of at most so many: its true lengths are on the device only.
    It may then have no query token at all; and all T tokens belong to some sequence, those of padding to the last.
    """

    query_lens: list[int]
    context_lens: list[int]
    num_decodes: int  # leading sequences with exactly one query token
    query_start_loc: Tensor  # [S + 1] int32
    seq_lens: Tensor  # [S] int32, the context lengths on the device
    block_tables: Tensor  # [S, max_blocks] int32; entries beyond a sequence's last block are not read for its result
    slot_mapping: Tensor  # [T] int64, where each new token's key and value go
    bounds: bool = False

    def decodes(self) -> AttentionMetadata:
        """Of the sequences that decode alone."""
        count = self.num_decodes
        return replace(
            self,
            query_lens=self.query_lens[:count],
            context_lens=self.context_lens[:count],
            query_start_loc=self.query_start_loc[: count + 1],
            seq_lens=self.seq_lens[:count],
            block_tables=self.block_tables[:count],
            slot_mapping=self.slot_mapping[:count],
        )

    def prefills(self) -> AttentionMetadata:
        """Of the others, whose tokens follow those of the decodes."""
        count = self.num_decodes
        return replace(
            self,
            query_lens=self.query_lens[count:],
            context_lens=self.context_lens[count:],
            num_decodes=0,
            query_start_loc=self.query_start_loc[count:] - count,
            seq_lens=self.seq_lens[count:],
            block_tables=self.block_tables[count:],
            slot_mapping=self.slot_mapping[count:],
        )
