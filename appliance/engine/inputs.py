"""A step's numbers on their way to the device: laid out in one pinned buffer, and copied to one buffer there.

Buffers of one shape always lie at the same addresses, so that a CUDA graph that was captured over them finds the next
step's numbers in its place.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from appliance.checkpoint.memory.graph_shapes import GraphShape
from appliance.engine.request import Request
from appliance.engine.scheduler import Scheduled
from appliance.models.batch import ForwardBatch
from kernels.paged_attention.metadata import AttentionMetadata

# Kernels may be chosen for addresses that are multiples of 16 bytes.
_ALIGNED: Final = 4
# The slot of a padding row: its key and value are not stored.
PADDING_SLOT: Final = -1
# In place of a token that a step samples whose result the host has not read.
_UNREAD: Final = -1


class Layout(NamedTuple):
    """Sizes of a step's layout: tokens, sequences, and columns of the block table."""

    tokens: int
    sequences: int
    blocks: int


class Inputs(NamedTuple):
    """A step on the device. A token id below 0 is the one that the sequence's slot sampled last. `last_rows` [S] int64
    are the rows of the sequences' last tokens, `sampling` [D] int64 the places among them of those that sample. A
    sequence that is not there, or that is a draft, has the slot `max_num_seqs`."""

    batch: ForwardBatch
    last_rows: Tensor
    sampling: Tensor


class _Offsets(NamedTuple):
    """Where each part begins, in numbers of 32 bits, and where all end."""

    token_ids: int
    positions: int
    slot_mapping: int
    last_rows: int
    sampling: int
    slots: int
    query_start_loc: int
    seq_lens: int
    block_tables: int
    end: int

    @classmethod
    def of(cls, layout: Layout) -> _Offsets:
        tokens, sequences, blocks = layout
        sizes = (*[2 * tokens] * 3, *[2 * sequences] * 3, sequences + 1, sequences, sequences * blocks)
        begins = [0]
        for size in sizes:
            begins.append(begins[-1] + -(-size // _ALIGNED) * _ALIGNED)
        return cls(*begins)


class _Sequence(NamedTuple):
    """What is laid out as one sequence: the tokens of a request that a step computes, or one of its drafts."""

    item: Scheduled
    num_tokens: int
    start: int
    draft: int | None = None

    @property
    def context_len(self) -> int:
        return self.start + self.num_tokens

    @property
    def token_ids(self) -> list[int]:
        if self.draft is not None:
            return [self.draft]
        return self.item.request.tokens(self.start, self.context_len) or [_UNREAD]


def _sequences(step: Sequence[Scheduled]) -> list[_Sequence]:
    """Each draft decodes as a sequence of its own, which sees those before it: all keys and values of a layer are
    written before its attention reads them. So drafts take the kernels and the graphs of decodes."""
    found = []
    for item in step:
        found.append(_Sequence(item, item.num_known, item.start))
        behind = item.start + item.num_known
        found += [_Sequence(item, 1, behind + place, draft) for place, draft in enumerate(item.drafts)]
    return found


class StepInputs:
    """Lays steps out while at most one before is not computed yet. Also keeps the table of each running request's
    blocks, by slot. A step has at most `max_num_rows` sequences, drafts included."""

    def __init__(
        self,
        *,
        max_num_tokens: int,
        max_num_seqs: int,
        max_num_rows: int,
        max_model_len: int,
        block_size: int,
        device: torch.device,
    ) -> None:
        self._block_size = block_size
        self._max_blocks = -(-max_model_len // block_size)
        self._blocks: NDArray[np.int32] = np.zeros((max_num_seqs, self._max_blocks), dtype=np.int32)
        self._num_blocks = [0] * max_num_seqs  # of each slot, how many of its blocks the table already has
        self._admission = [-1] * max_num_seqs  # of which admission those are
        size = _Offsets.of(Layout(max_num_tokens, max_num_rows, self._max_blocks)).end
        self._on_device = torch.zeros(size, dtype=torch.int32, device=device)
        self._pinned = [self._on_device]
        if self._on_device.is_cuda:  # two, as the last step's may still be copied while the next is laid out
            self._pinned = [torch.zeros(size, dtype=torch.int32, pin_memory=True) for _ in range(2)]
        self._host: NDArray[np.int32] = self._pinned[0].numpy()

    def lay_out(self, step: Sequence[Scheduled]) -> Inputs:
        """`step` as it is."""
        sequences = _sequences(step)
        query_lens, context_lens = (
            [getattr(each, name) for each in sequences] for name in ("num_tokens", "context_len")
        )
        blocks = -(-max(context_lens) // self._block_size)
        layout = Layout(sum(query_lens), len(sequences), blocks)
        self._fill(sequences, layout)
        inputs = self._views(layout, query_lens, context_lens)
        return inputs._replace(sampling=inputs.sampling[: sum(item.num_sampled for item in step)])

    def lay_out_padded(self, step: Sequence[Scheduled], shape: GraphShape) -> None:
        """Lay out decodes as the first rows of `shape`; the rest is padding. `padded` returns the batch."""
        self._fill(_sequences(step), self._padded(shape))

    def padded(self, shape: GraphShape) -> Inputs:
        """The batch laid out for `shape`. Host-side lengths are the shape's maximum."""
        sequences, context = shape
        return self._views(self._padded(shape), [1] * sequences, [context] * sequences)

    def _padded(self, shape: GraphShape) -> Layout:
        return Layout(shape.sequences, shape.sequences, -(-shape.context // self._block_size))

    def _fill(self, step: Sequence[_Sequence], layout: Layout) -> None:
        """Write `step`, and sequences of one token that is kept nowhere where `layout` has room for more of them."""
        count = len(step)
        self._pinned.reverse()
        self._host = self._pinned[0].numpy()
        slots = np.array([self._update_block_table(each.item.request) for each in step], dtype=np.int64)
        drafts = [each.draft is not None for each in step]
        samples = np.flatnonzero([each.item.samples for each in step])
        places, host = _Offsets.of(layout), self._host
        lens = np.ones(layout.sequences, dtype=np.int64)
        first = np.zeros(layout.sequences, dtype=np.int64)
        lens[:count] = [each.num_tokens for each in step]
        first[:count] = [each.start for each in step]
        ends = lens.cumsum()
        token_ids: list[int] = []
        for each in step:
            token_ids += each.token_ids
        tokens = len(token_ids)
        positions = np.arange(layout.tokens) + np.repeat(first - (ends - lens), lens)
        of_step = positions[:tokens]
        blocks = self._blocks[np.repeat(slots, lens[:count]), of_step // self._block_size].astype(np.int64)

        int64 = self._int64
        ids = int64(places.token_ids, layout.tokens)
        ids[:tokens], ids[tokens:] = token_ids, 0
        int64(places.positions, layout.tokens)[:] = positions
        mapping = int64(places.slot_mapping, layout.tokens)
        mapping[:tokens], mapping[tokens:] = blocks * self._block_size + of_step % self._block_size, PADDING_SLOT
        int64(places.last_rows, layout.sequences)[:] = ends - 1
        int64(places.sampling, samples.size)[:] = samples
        of_slots = int64(places.slots, layout.sequences)
        of_slots[:count], of_slots[count:] = np.where(drafts, len(self._blocks), slots), len(self._blocks)
        starts = host[places.query_start_loc :]
        starts[0], starts[1 : layout.sequences + 1] = 0, ends
        host[places.seq_lens :][: layout.sequences] = first + lens
        tables = host[places.block_tables :][: layout.sequences * layout.blocks].reshape(
            layout.sequences, layout.blocks
        )
        tables[:count], tables[count:] = self._blocks[slots, : layout.blocks], 0
        if self._on_device.is_cuda:
            self._on_device[: places.end].copy_(self._pinned[0][: places.end], non_blocking=True)

    def _views(self, layout: Layout, query_lens: list[int], context_lens: list[int]) -> Inputs:
        """The parts of the buffer as what a model is called with."""
        places, device = _Offsets.of(layout), self._on_device

        def int64(begin: int, size: int) -> Tensor:
            return device[begin : begin + 2 * size].view(torch.int64)

        metadata = AttentionMetadata(
            query_lens=query_lens,
            context_lens=context_lens,
            num_decodes=query_lens.count(1),
            query_start_loc=device[places.query_start_loc :][: layout.sequences + 1],
            seq_lens=device[places.seq_lens :][: layout.sequences],
            block_tables=device[places.block_tables :][: layout.sequences * layout.blocks].view(-1, layout.blocks),
            slot_mapping=int64(places.slot_mapping, layout.tokens),
        )
        batch = ForwardBatch(
            token_ids=int64(places.token_ids, layout.tokens),
            positions=int64(places.positions, layout.tokens),
            attention=metadata,
            slots=int64(places.slots, layout.sequences),
        )
        return Inputs(batch, *(int64(place, layout.sequences) for place in (places.last_rows, places.sampling)))

    def _int64(self, begin: int, size: int) -> NDArray[np.int64]:
        """Numbers of 64 bits of the pinned buffer."""
        return self._host[begin : begin + 2 * size].view(np.int64)

    def _update_block_table(self, request: Request) -> int:
        """Bring the table up to date for a request; only blocks it got since the last step are written."""
        slot = request.slot
        if self._admission[slot] != request.admission:
            self._admission[slot], self._num_blocks[slot] = request.admission, 0
        known, count = self._num_blocks[slot], len(request.block_ids)
        if known < count:
            self._blocks[slot, known:count] = request.block_ids[known:]
            self._num_blocks[slot] = count
        return slot
