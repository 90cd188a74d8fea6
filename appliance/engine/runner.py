"""Runs one scheduled step on the device: lays out its tokens, calls the model, samples the next tokens."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from appliance.engine.histories import TokenHistories
from appliance.engine.request import Request
from appliance.engine.sampling import sampling_batch
from appliance.engine.scheduler import Scheduled
from appliance.models.base import Model
from appliance.models.batch import ForwardBatch, LayerCache
from kernels.binding import Kernels
from kernels.paged_attention.metadata import AttentionMetadata
from kernels.sampling.batch import Sampled


class StepResult(NamedTuple):
    """What a step computed. `token_ids` has an entry for each request that samples, in the step's order; one means
    nothing where its request is not `finite`, or where it is None: every token is forbidden."""

    finite: list[bool]  # of each request of the step: its last token is computed from numbers, and so are its logits
    token_ids: list[int | None]
    logprobs: Tensor | None = None  # [D] float32
    top_logprobs: Tensor | None = None  # [D, n] float32, best first
    top_token_ids: Tensor | None = None  # [D, n] int64


class Runner:
    """Holds the model, its cache, and a table of each running request's blocks, by slot."""

    def __init__(
        self,
        model: Model,
        caches: Sequence[LayerCache],
        kernels: Kernels,
        *,
        vocab_size: int,
        eos_token_ids: frozenset[int],
        max_num_seqs: int,
        max_model_len: int,
        block_size: int,
        device: torch.device,
    ) -> None:
        self._model = model
        self._caches = caches
        self._kernels = kernels
        self._block_size = block_size
        self._device = device
        self._histories = TokenHistories(
            vocab_size=vocab_size,
            eos_token_ids=eos_token_ids,
            max_num_seqs=max_num_seqs,
            max_model_len=max_model_len,
            device=device,
        )
        self._blocks: NDArray[np.int32] = np.zeros((max_num_seqs, -(-max_model_len // block_size)), dtype=np.int32)
        self._num_blocks = [0] * max_num_seqs  # of each slot, how many of its blocks the table already has
        self._admission = [-1] * max_num_seqs  # of which admission those are

    @torch.inference_mode()
    def run(self, step: Sequence[Scheduled]) -> StepResult:
        """Compute a step, and sample for those of its requests of which all tokens are computed then."""
        hidden = self._model.forward(self._lay_out(step), self._caches)
        lasts = np.cumsum([item.num_tokens for item in step]) - 1
        rows = hidden[self._tensor(lasts)]
        # A sequence's last token sees all others: where one of them is not a number, neither is this one.
        finite = rows.isfinite().all(dim=-1)
        samples = [item.samples for item in step]
        if not any(samples):
            return StepResult(finite.tolist(), [])
        requests = [item.request for item in step if item.samples]
        if not all(samples):
            rows = rows[self._tensor(np.flatnonzero(samples))]
        logits = self._model.compute_logits(rows)
        batch = sampling_batch(requests, self._histories, self._device)
        sampled: Sampled = self._kernels.sampling(logits, batch)
        # All that the host reads, in one copy.
        read = torch.cat((finite, sampled.finite, sampled.samplable, sampled.token_ids)).tolist()
        of_step, of_rows, samplable, token_ids = _split(read, len(step), *[len(requests)] * 3)
        for place, sound in zip(np.flatnonzero(samples), of_rows, strict=True):
            of_step[place] &= sound
        return StepResult(
            [bool(sound) for sound in of_step],
            [token if may else None for token, may in zip(token_ids, samplable, strict=True)],
            *sampled[3:],
        )

    def _lay_out(self, step: Sequence[Scheduled]) -> ForwardBatch:
        slots = [self._enter_blocks(item.request) for item in step]
        query_lens = [item.num_tokens for item in step]
        context_lens = [item.request.num_computed_tokens + item.num_tokens for item in step]
        token_ids: list[int] = []
        for request, num_tokens in step:
            token_ids += request.tokens(request.num_computed_tokens, request.num_computed_tokens + num_tokens)
        lens = np.array(query_lens)
        ends = lens.cumsum()
        starts = ends - lens
        first = np.array([item.request.num_computed_tokens for item in step])
        positions = np.arange(len(token_ids)) + np.repeat(first - starts, lens)
        block_of_token = self._blocks[np.repeat(slots, lens), positions // self._block_size].astype(np.int64)
        slot_mapping = block_of_token * self._block_size + positions % self._block_size
        width = -(-max(context_lens) // self._block_size)
        metadata = AttentionMetadata(
            query_lens=query_lens,
            context_lens=context_lens,
            num_decodes=int((lens == 1).sum()),
            query_start_loc=self._tensor(np.concatenate(([0], ends)).astype(np.int32)),
            seq_lens=self._tensor(np.array(context_lens, dtype=np.int32)),
            block_tables=self._tensor(self._blocks[slots, :width]),
            slot_mapping=self._tensor(slot_mapping),
        )
        return ForwardBatch(
            token_ids=self._tensor(np.array(token_ids, dtype=np.int64)),
            positions=self._tensor(positions),
            attention=metadata,
        )

    def _enter_blocks(self, request: Request) -> int:
        """Bring the table up to date for `request`; only blocks it got since the last step are written."""
        slot = request.slot
        if self._admission[slot] != request.admission:
            self._admission[slot], self._num_blocks[slot] = request.admission, 0
        known, count = self._num_blocks[slot], len(request.block_ids)
        if known < count:
            self._blocks[slot, known:count] = request.block_ids[known:]
            self._num_blocks[slot] = count
        return slot

    def _tensor(self, values: NDArray[np.int32] | NDArray[np.int64]) -> Tensor:
        return torch.from_numpy(values).to(self._device, non_blocking=True)


def _split(values: list[int], *counts: int) -> Iterator[list[int]]:
    start = 0
    for count in counts:
        yield values[start : start + count]
        start += count
