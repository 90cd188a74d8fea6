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
from kernels.chains.rounds import Chains
from kernels.paged_attention.metadata import AttentionMetadata

# Kernels may be chosen for addresses that are multiples of 16 bytes.
_ALIGNED: Final = 4
# The slot of a padding row: its key and value are not stored.
PADDING_SLOT: Final = -1
# In place of a token that a step samples whose result the host has not read.
_UNREAD: Final = -1


class Layout(NamedTuple):
    """Sizes of a step's layout: tokens, sequences, of which the first decode, and columns of the block table of each
    pool."""

    tokens: int
    sequences: int
    decodes: int
    blocks: tuple[int, ...]


class _Pool(NamedTuple):
    """How the pages of a pool are laid out: contexts begin at the first block that a query sees."""

    window: int | None
    block_size: int

    def first_seen(self, start: NDArray[np.int64]) -> NDArray[np.int64]:
        """The first block that the token at each position sees."""
        return 0 * start if self.window is None else np.maximum(start + 1 - self.window, 0) // self.block_size

    def longest(self, context: int, tokens: int) -> int:
        """The longest context of a sequence that computes up to `tokens` tokens, and has one of up to `context`."""
        return context if self.window is None else min(context, self.window + tokens + self.block_size - 2)


class Inputs(NamedTuple):
    """A step on the device. A token id below 0 is the one that the sequence's slot sampled last. `last_rows` [S] int64
    are the rows of the sequences' last tokens, `slots` [S] int64 the sequences' slots, and `sampling` [D] int64 the
    places among them of those that sample: padding lies behind all sequences in these, while in `batch` that of decodes
    lies between decodes and prefills. A sequence that is not there has the slot `max_num_seqs`, and among `slots`, by
    which is kept what was sampled, a draft has it too."""

    batch: ForwardBatch
    last_rows: Tensor
    slots: Tensor
    sampling: Tensor


class _Offsets(NamedTuple):
    """Where each part begins, in numbers of 32 bits, and where all end."""

    token_ids: int
    positions: int
    last_rows: int
    slots: int
    sampling: int
    sequence_slots: int  # as the batch has them
    query_start_loc: int
    chain_lens: int
    accepted: int
    slot_mapping: tuple[int, ...]  # of each pool, as the following
    seq_lens: tuple[int, ...]
    block_tables: tuple[int, ...]
    end: int

    @classmethod
    def of(cls, layout: Layout) -> _Offsets:
        tokens, sequences, _, blocks = layout
        common = (*[2 * tokens] * 2, *[2 * sequences] * 4, sequences + 1, *[sequences] * 2)
        of_pools = [size for each in blocks for size in (2 * tokens, sequences, sequences * each)]
        begins = [0]
        for size in (*common, *of_pools):
            begins.append(begins[-1] + -(-size // _ALIGNED) * _ALIGNED)
        pools = begins[len(common) : -1]
        slot_mapping, seq_lens, block_tables = (tuple(pools[part::3]) for part in range(3))
        ids, positions, last_rows, slots, sampling, sequence_slots, starts, chain_lens, accepted = begins[: len(common)]
        return cls(
            ids, positions, last_rows, slots, sampling, sequence_slots, starts, chain_lens, accepted,
            slot_mapping, seq_lens, block_tables, begins[-1],
        )  # fmt: skip


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
    blocks, by slot, for the pool of each of `windows`. A step has at most `max_num_rows` sequences, drafts included,
    unless it is padded to a shape. With `has_chains` it says which drafts belong together."""

    def __init__(
        self,
        *,
        max_num_tokens: int,
        max_num_seqs: int,
        max_num_rows: int,
        max_model_len: int,
        block_size: int,
        device: torch.device,
        shapes: Sequence[GraphShape] = (),
        windows: Sequence[int | None] = (None,),
        has_chains: bool = False,
    ) -> None:
        self._has_chains = has_chains
        self._block_size, self._max_num_seqs = block_size, max_num_seqs
        self._pools = [_Pool(window, block_size) for window in windows]
        assert not has_chains or windows[0] is None, "kept drafts are found by lengths that count every token"
        shape = max_num_seqs, -(-max_model_len // block_size)
        self._tables: list[NDArray[np.int32]] = [np.zeros(shape, dtype=np.int32) for _ in windows]
        self._num_blocks = [[0] * len(windows) for _ in range(max_num_seqs)]  # of each slot, what its tables have
        self._admission = [-1] * max_num_seqs  # of which admission those are
        widest = [pool.longest(max_model_len, max_num_tokens) for pool in self._pools]
        layouts = [Layout(max_num_tokens, max_num_rows, max_num_rows, self._columns(widest))]
        layouts += [self._padded(shape) for shape in shapes]
        size = max(_Offsets.of(layout).end for layout in layouts)
        self._on_device = torch.zeros(size, dtype=torch.int32, device=device)
        self._pinned = [self._on_device]
        if self._on_device.is_cuda:  # two, as the last step's may still be copied while the next is laid out
            self._pinned = [torch.zeros(size, dtype=torch.int32, pin_memory=True) for _ in range(2)]
        self._host: NDArray[np.int32] = self._pinned[0].numpy()

    def lay_out(self, step: Sequence[Scheduled]) -> Inputs:
        """`step` as it is."""
        sequences = _sequences(step)
        query_lens = [each.num_tokens for each in sequences]
        starts = np.array([each.start for each in sequences], dtype=np.int64)
        ends = starts + query_lens
        context_lens = [(ends - pool.first_seen(starts) * self._block_size).tolist() for pool in self._pools]
        blocks = self._columns([max(of_pool) for of_pool in context_lens])
        layout = Layout(sum(query_lens), len(sequences), query_lens.count(1), blocks)
        self._fill(sequences, layout)
        inputs = self._views(layout, query_lens, context_lens)
        return inputs._replace(sampling=inputs.sampling[: sum(item.num_sampled for item in step)])

    def lay_out_padded(self, step: Sequence[Scheduled], shape: GraphShape) -> None:
        """Lay out decodes as the first rows of `shape`, and prompts behind those that it has for decodes; the rest is
        padding. `padded` returns the batch."""
        self._fill(_sequences(step), self._padded(shape))

    def padded(self, shape: GraphShape) -> Inputs:
        """The batch laid out for `shape`. Host-side lengths are the shape's maximum; `last_rows` and `slots` are as
        many as it has rows of logits."""
        layout = self._padded(shape)
        others = layout.sequences - layout.decodes
        query_lens = [1] * layout.decodes + [shape.prefill_tokens] * others
        context_lens = [[pool.longest(shape.context, tokens) for tokens in query_lens] for pool in self._pools]
        inputs = self._views(layout, query_lens, context_lens, bounds=True)
        last_rows, slots = inputs.last_rows[: shape.num_rows], inputs.slots[: shape.num_rows]
        return inputs._replace(last_rows=last_rows, slots=slots)

    def _padded(self, shape: GraphShape) -> Layout:
        """Behind the prompts of a step there is one more sequence, to which the tokens of padding belong."""
        others = shape.prefills + 1 if shape.prefill_tokens else 0
        longest = [pool.longest(shape.context, shape.prefill_tokens or 1) for pool in self._pools]
        return Layout(shape.num_tokens, shape.sequences + others, shape.sequences, self._columns(longest))

    def _columns(self, lengths: Sequence[int]) -> tuple[int, ...]:
        """Of block tables for contexts of up to such a length in each pool."""
        return tuple(-(-length // self._block_size) for length in lengths)

    def _fill(self, step: Sequence[_Sequence], layout: Layout) -> None:
        """Write `step`. Where `layout` has room for more decodes there are others of one token, for more sequences
        others of none, and the last has all tokens that are left; these are kept nowhere."""
        count, decodes = len(step), sum(each.num_tokens == 1 for each in step)
        self._pinned.reverse()
        self._host = self._pinned[0].numpy()
        slots = np.array([self._update_block_tables(each.item.request) for each in step], dtype=np.int64)
        of_rows = np.where([each.draft is not None for each in step], self._max_num_seqs, slots)
        samples = np.flatnonzero([each.item.samples for each in step])
        offsets, host = _Offsets.of(layout), self._host
        places = np.arange(count)  # among the layout's sequences
        places[decodes:] += layout.decodes - decodes
        lens = np.zeros(layout.sequences, dtype=np.int64)
        lens[: layout.decodes] = 1
        lens[places] = own_lens = [each.num_tokens for each in step]
        lens[-1] += layout.tokens - lens.sum()
        first = np.zeros(layout.sequences, dtype=np.int64)
        first[places] = [each.start for each in step]
        ends = lens.cumsum()
        token_ids: list[int] = []
        for each in step:
            token_ids += each.token_ids
        rows = np.arange(len(token_ids))
        rows[decodes:] += layout.decodes - decodes
        positions = np.arange(layout.tokens) + np.repeat(first - (ends - lens), lens)

        int64 = self._int64
        ids = int64(offsets.token_ids, layout.tokens)
        ids[:] = 0
        ids[rows] = token_ids
        int64(offsets.positions, layout.tokens)[:] = positions
        last_rows = int64(offsets.last_rows, layout.sequences)
        last_rows[:count], last_rows[count:] = ends[places] - 1, layout.tokens - 1
        slots_of_rows = int64(offsets.slots, layout.sequences)
        slots_of_rows[:count], slots_of_rows[count:] = of_rows, self._max_num_seqs
        int64(offsets.sampling, samples.size)[:] = samples
        of_sequences = int64(offsets.sequence_slots, layout.sequences)
        of_sequences[:] = self._max_num_seqs
        of_sequences[places] = slots
        starts = host[offsets.query_start_loc :]
        starts[0], starts[1 : layout.sequences + 1] = 0, ends
        chain_lens, accepted = (host[begin:][: layout.sequences] for begin in (offsets.chain_lens, offsets.accepted))
        chain_lens[:], accepted[:] = 1, 0
        chain_lens[places] = [0 if each.draft is not None else 1 + len(each.item.drafts) for each in step]
        accepted[places] = [each.item.num_replayed for each in step]
        of_tokens, of_step = np.repeat(slots, own_lens), positions[rows]
        for place, (pool, known) in enumerate(zip(self._pools, self._tables, strict=True)):
            mapping = int64(offsets.slot_mapping[place], layout.tokens)
            mapping[:] = PADDING_SLOT
            blocks = known[of_tokens, of_step // self._block_size].astype(np.int64)
            mapping[rows] = blocks * self._block_size + of_step % self._block_size
            begins = pool.first_seen(first)
            host[offsets.seq_lens[place] :][: layout.sequences] = first + lens - begins * self._block_size
            shape = layout.sequences, layout.blocks[place]
            tables = host[offsets.block_tables[place] :][: shape[0] * shape[1]].reshape(shape)
            tables[:] = 0
            if pool.window is None:
                tables[places] = known[slots, : shape[1]]
            else:
                columns = begins[places, None] + np.arange(shape[1])  # behind the last there is nothing to be seen
                tables[places] = known[slots[:, None], np.minimum(columns, known.shape[1] - 1)]
        if self._on_device.is_cuda:
            self._on_device[: offsets.end].copy_(self._pinned[0][: offsets.end], non_blocking=True)

    def _views(
        self, layout: Layout, query_lens: list[int], context_lens: list[list[int]], *, bounds: bool = False
    ) -> Inputs:
        """The parts of the buffer as what a model is called with; `context_lens` are of each pool."""
        offsets, device = _Offsets.of(layout), self._on_device

        def int64(begin: int, size: int) -> Tensor:
            return device[begin : begin + 2 * size].view(torch.int64)

        pools = [
            AttentionMetadata(
                query_lens=query_lens,
                context_lens=context_lens[place],
                num_decodes=layout.decodes,
                query_start_loc=device[offsets.query_start_loc :][: layout.sequences + 1],
                seq_lens=device[offsets.seq_lens[place] :][: layout.sequences],
                block_tables=device[offsets.block_tables[place] :][: layout.sequences * blocks].view(-1, blocks),
                slot_mapping=int64(offsets.slot_mapping[place], layout.tokens),
                bounds=bounds,
            )
            for place, blocks in enumerate(layout.blocks)
        ]
        chains = Chains(*(device[begin:][: layout.sequences] for begin in (offsets.chain_lens, offsets.accepted)))
        batch = ForwardBatch(
            token_ids=int64(offsets.token_ids, layout.tokens),
            positions=int64(offsets.positions, layout.tokens),
            attention=pools[0],
            slots=int64(offsets.sequence_slots, layout.sequences),
            windowed={pool.window: each for pool, each in zip(self._pools[1:], pools[1:], strict=True)},
            chains=chains if self._has_chains else None,
        )
        rest = (offsets.last_rows, offsets.slots, offsets.sampling)
        return Inputs(batch, *(int64(begin, layout.sequences) for begin in rest))

    def _int64(self, begin: int, size: int) -> NDArray[np.int64]:
        """Numbers of 64 bits of the pinned buffer."""
        return self._host[begin : begin + 2 * size].view(np.int64)

    def _update_block_tables(self, request: Request) -> int:
        """Bring the tables up to date for a request; only blocks it got since the last step are written. Those that it
        has let go of since stay, in columns that are not laid out any more."""
        slot = request.slot
        if self._admission[slot] != request.admission:
            self._admission[slot], self._num_blocks[slot] = request.admission, [0] * len(self._tables)
        for place, (table, pages) in enumerate(zip(self._tables, request.pages, strict=True)):
            known = max(self._num_blocks[slot][place], pages.first)
            if known < pages.end:
                table[slot, known : pages.end] = pages.ids[known - pages.first :]
                self._num_blocks[slot][place] = pages.end
        return slot
