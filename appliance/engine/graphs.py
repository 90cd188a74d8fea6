"""CUDA graphs of decodes: one launch in place of several hundred, for which the GPU would wait otherwise.

Each is captured for a batch size and a maximum context; a step is padded to the smallest that fits. Nothing in it
depends on the host: lengths, tables and tokens are read from the step's buffer (`StepInputs`) when it is replayed. A
few are captured before the engine is ready, the rest while it is idle; one that running requests keep missing is
captured while they wait.
"""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Callable, Iterable
from typing import Final, NamedTuple

import torch
from torch import Tensor

from appliance.checkpoint.memory.graph_shapes import GraphShape
from kernels.sampling.batch import Sampled

# After so many misses a graph is captured under load: that takes as long as a few eager steps.
MISSES_BEFORE_CAPTURE: Final = 3


class Decoded(NamedTuple):
    """What a decode of S sequences leaves on the device."""

    hidden: Tensor  # [S, hidden_size]
    finite: Tensor  # [S] bool: every value of the hidden state is finite
    logits: Tensor  # [S, vocab_size] float32, in memory that all graphs share
    greedy: Sampled  # as where every request takes its largest logit


class _Captured(NamedTuple):
    graph: torch.cuda.CUDAGraph
    result: Decoded  # overwritten by each replay


class GraphChoice:
    """The shapes that graphs are to have, and which of them have been captured."""

    def __init__(self, shapes: Iterable[GraphShape]) -> None:
        self._shapes = tuple(shapes)  # in the order of their capture
        self._captured: set[GraphShape] = set()
        self._misses: Counter[GraphShape] = Counter()

    @property
    def missing(self) -> list[GraphShape]:
        return [shape for shape in self._shapes if shape not in self._captured]

    def is_missing(self, shape: GraphShape) -> bool:
        return shape not in self._captured

    def add(self, shape: GraphShape) -> None:
        self._captured.add(shape)

    def drop(self, shape: GraphShape) -> None:
        """Do without `shape`, and without those that are not captured."""
        self._captured.discard(shape)
        self._shapes = tuple(shape for shape in self._shapes if shape in self._captured)

    def choose(self, sequences: int, context: int) -> GraphShape | None:
        """The smallest for decodes of so many sequences, which see up to `context` tokens; a larger one, or None, while
        it is missing and has not been asked for several times."""
        best = _smallest(self._shapes, sequences, context)
        if best is None or best in self._captured:
            return best
        self._misses[best] += 1
        if self._misses[best] > MISSES_BEFORE_CAPTURE:
            return best
        return _smallest(self._captured, sequences, context)


class DecodeGraphs:
    """The graphs of one model. `compute` runs a step of a shape over the buffer, padded throughout; what it makes on
    its way is in memory that all graphs share, so that only one may be replayed at a time."""

    def __init__(
        self, shapes: Iterable[GraphShape], compute: Callable[[GraphShape], Decoded], device: torch.device
    ) -> None:
        self.choice = GraphChoice(shapes)
        self._compute = compute
        self._device = device
        self._captured: dict[GraphShape, _Captured] = {}
        self._stream = torch.cuda.Stream(device)
        self._pool = torch.cuda.graph_pool_handle()

    def replay(self, shape: GraphShape) -> Decoded:
        """Compute the step of `shape` that the buffer holds. The result is valid until the next replay."""
        captured = self._captured[shape]
        captured.graph.replay()
        return captured.result

    def warm_up(self, shape: GraphShape) -> None:
        """Compute the step of `shape` that the buffer holds once, in memory that other steps use too: that loads its
        kernels, which a capture may not.

        Raises:
            torch.OutOfMemoryError: the device has less memory than the plan counted on.
        """
        self._compute(shape)

    def capture(self, shape: GraphShape) -> bool:
        """Capture the graph of `shape` after its `warm_up`; False where the device has no memory for it."""
        self._stream.wait_stream(torch.cuda.current_stream(self._device))
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.stream(self._stream):
            self._stream.synchronize()
            graph.capture_begin(pool=self._pool, capture_error_mode="thread_local")
            try:
                result = self._compute(shape)
            except Exception as error:
                with contextlib.suppress(RuntimeError):  # that the capture failed: the exception says why
                    graph.capture_end()
                if isinstance(error, torch.OutOfMemoryError):
                    return False
                raise
            graph.capture_end()
        torch.cuda.current_stream(self._device).wait_stream(self._stream)
        self._captured[shape] = _Captured(graph, result)
        self.choice.add(shape)
        return True

    def drop(self, shape: GraphShape) -> None:
        """Do without `shape`, captured or not, and without all that are missing."""
        self._captured.pop(shape, None)
        self.choice.drop(shape)


def _smallest(shapes: Iterable[GraphShape], sequences: int, context: int) -> GraphShape | None:
    fitting = [shape for shape in shapes if shape.sequences >= sequences and shape.context >= context]
    return min(fitting, key=lambda shape: (shape.sequences, shape.context), default=None)
