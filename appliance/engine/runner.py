"""Runs one scheduled step on the device: its tokens are laid out, the model is called, and the next ones sampled; by
launching each kernel, or by replaying the CUDA graph of a decode."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from appliance.checkpoint.memory.graphs import GraphShape
from appliance.engine.graphs import Decoded, DecodeGraphs
from appliance.engine.histories import TokenHistories
from appliance.engine.inputs import StepInputs
from appliance.engine.sampling import sampling_batch
from appliance.engine.scheduler import Scheduled
from appliance.models.base import Model
from appliance.models.batch import LayerCache
from appliance.protocol import StepKind
from kernels.binding import Kernels
from kernels.sampling.batch import Sampled, SamplingBatch


class StepResult(NamedTuple):
    """What a step computed. `token_ids` has an entry for each request that samples, in the step's order; one means
    nothing where its request is not `finite`, or where it is None: every token is forbidden."""

    finite: list[bool]  # of each request of the step: its last token is computed from numbers, and so are its logits
    token_ids: list[int | None]
    logprobs: Tensor | None = None  # [D] float32
    top_logprobs: Tensor | None = None  # [D, n] float32, best first
    top_token_ids: Tensor | None = None  # [D, n] int64


class Runner:
    """Holds the model, its cache, and its CUDA graphs where it has any."""

    def __init__(
        self,
        model: Model,
        caches: Sequence[LayerCache],
        kernels: Kernels,
        inputs: StepInputs,
        histories: TokenHistories,
        device: torch.device,
    ) -> None:
        self._model = model
        self._caches = caches
        self._kernels = kernels
        self._inputs = inputs
        self._histories = histories
        self._device = device
        self._graphs: DecodeGraphs | None = None
        self._logits = torch.empty(0, device=device)  # of decodes by graphs
        self.steps: Counter[StepKind] = Counter()

    def use_graphs(self, shapes: Sequence[GraphShape], vocab_size: int) -> None:
        """Decode by graphs of `shapes`, as soon as they are captured."""
        most = max(shape.sequences for shape in shapes)
        self._logits = torch.empty(most, vocab_size, dtype=torch.float32, device=self._device)
        self._graphs = DecodeGraphs(shapes, self._decode, self._device)

    @torch.inference_mode()
    def capture_next(self) -> bool:
        """Capture one graph that is missing; False if none is."""
        if self._graphs is None or not (missing := self._graphs.ladder.missing):
            return False
        self._inputs.lay_out_padded((), missing[0])
        self._graphs.capture(missing[0])
        return True

    @torch.inference_mode()
    def run(self, step: Sequence[Scheduled]) -> StepResult:
        """Compute a step, and sample for those of its requests of which all tokens are computed then."""
        kind, shape = self._way(step)
        self.steps[kind] += 1
        return self._run_eagerly(step) if shape is None else self._replay(step, shape)

    def _way(self, step: Sequence[Scheduled]) -> tuple[StepKind, GraphShape | None]:
        if self._graphs is None:
            return StepKind.EAGER, None
        if any(item.num_tokens > 1 or not item.samples for item in step):
            return StepKind.PREFILL, None
        longest = 1 + max(item.request.num_computed_tokens for item in step)
        shape = self._graphs.ladder.holding(len(step), longest)
        return StepKind.NOT_CAPTURED if shape is None else StepKind.GRAPH, shape

    def _replay(self, step: Sequence[Scheduled], shape: GraphShape) -> StepResult:
        assert self._graphs is not None
        self._inputs.lay_out_padded(step, shape)
        decoded = self._graphs.replay(shape)
        count, sampled = len(step), decoded.greedy
        requests = [item.request for item in step]
        if not all(request.is_plain for request in requests):
            batch = sampling_batch(requests, self._histories, self._device)
            sampled = self._kernels.sampling(decoded.logits[:count], batch)
        return _result([True] * count, decoded.finite, sampled)

    def _decode(self, shape: GraphShape) -> Decoded:
        """What a graph of `shape` holds."""
        hidden = self._model.forward(self._inputs.padded(shape), self._caches)
        logits = self._model.compute_logits(hidden, out=self._logits[: shape.sequences])
        return Decoded(_finite(hidden), logits, self._kernels.sampling(logits, SamplingBatch()))

    def _run_eagerly(self, step: Sequence[Scheduled]) -> StepResult:
        batch, last_rows, sampling = self._inputs.lay_out(step)
        rows = self._model.forward(batch, self._caches)[last_rows]
        samples = [item.samples for item in step]
        finite = _finite(rows)
        if not any(samples):
            return StepResult(finite.tolist(), [])
        logits = self._model.compute_logits(rows if all(samples) else rows[sampling])
        requests = [item.request for item in step if item.samples]
        sampled = self._kernels.sampling(logits, sampling_batch(requests, self._histories, self._device))
        return _result(samples, finite, sampled)


def _finite(rows: Tensor) -> Tensor:
    """Of each sequence's last hidden state. Its last token sees all others: where one of them is not a number, neither
    is this one."""
    return rows.isfinite().all(dim=-1)


def _result(samples: list[bool], finite: Tensor, sampled: Sampled) -> StepResult:
    """What the host reads, in one copy. `finite` and `sampled` may have more rows than the step."""
    count, sampling = len(samples), sum(samples)
    numbers = torch.cat(
        (finite[:count], sampled.finite[:sampling], sampled.samplable[:sampling], sampled.token_ids[:sampling])
    )
    of_step, of_rows, samplable, token_ids = _split(numbers.tolist(), count, *[sampling] * 3)
    for place, sound in zip(np.flatnonzero(samples), of_rows, strict=True):
        of_step[place] &= sound
    return StepResult(
        [bool(sound) for sound in of_step],
        [token if may else None for token, may in zip(token_ids, samplable, strict=True)],
        *sampled[3:],
    )


def _split(values: list[int], *counts: int) -> Iterator[list[int]]:
    start = 0
    for count in counts:
        yield values[start : start + count]
        start += count
