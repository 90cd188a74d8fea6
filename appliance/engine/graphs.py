"""CUDA graphs of steps: one launch in place of several hundred, for which the GPU would wait otherwise.

Each is captured for so many decodes, tokens of prompts, and a maximum context; a step is padded to the smallest that
fits. Nothing in it depends on the host: lengths, tables and tokens are read from the step's buffer (`StepInputs`) when
it is replayed. A few are captured before the engine is ready, the rest while it is idle; one that running requests keep
missing is captured while they wait.
"""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from typing import Final, NamedTuple, TypeVar

import torch
from torch import Tensor

from appliance.checkpoint.memory.graph_shapes import GraphShape
from kernels.sampling.batch import Sampled

# After so many misses a graph is captured under load: that takes as long as a few eager steps.
MISSES_BEFORE_CAPTURE: Final = 3
# While the graph of its size is missing, a step takes one that computes at most so many times the tokens.
_MOST_PADDED: Final = 2

_T = TypeVar("_T")


class Computed(NamedTuple):
    """What a step of S sequences leaves on the device."""

    finite: Tensor  # [S] bool: every value of the last hidden state is finite
    logits: Tensor  # [S, vocab_size] in the model's dtype, in memory that all graphs share
    greedy: Sampled  # as where every request takes its largest logit


class _Captured(NamedTuple):
    """Results are overwritten by each replay."""

    graph: torch.cuda.CUDAGraph
    result: Computed
    head: torch.cuda.CUDAGraph | None = None
    predicted: Tensor | None = None


class StepSize(NamedTuple):
    """What a graph must have room for."""

    decodes: int
    context: int  # the longest
    prefill_tokens: int = 0
    prefills: int = 0


class GraphChoice:
    """The shapes that graphs are to have, and which of them have been captured."""

    def __init__(self, shapes: Iterable[GraphShape]) -> None:
        self._shapes = tuple(shapes)  # in the order of their capture
        self._captured: set[GraphShape] = set()
        self._misses: Counter[GraphShape] = Counter()
        self.holds_prefills = any(shape.prefills for shape in self._shapes)  # whether or not memory was left for them
        by_size = sorted(self._shapes, key=lambda shape: (shape.num_tokens, shape.context))
        # Steps of decodes only have graphs of their own.
        self._by_size = {
            with_prefills: [shape for shape in by_size if bool(shape.prefills) == with_prefills]
            for with_prefills in (False, True)
        }

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
        self._by_size = {kind: [*filter(self._captured.__contains__, each)] for kind, each in self._by_size.items()}

    def has_room(self, size: StepSize) -> bool:
        """Whether some graph has, be it captured or not."""
        return next(self._fitting(size), None) is not None

    def choose(self, size: StepSize) -> GraphShape | None:
        """The smallest with room for `size`; a larger one, or None, while it is missing and has not been asked for
        several times."""
        best = next(self._fitting(size), None)
        if best is None or best in self._captured:
            return best
        self._misses[best] += 1
        if self._misses[best] > MISSES_BEFORE_CAPTURE:
            return best
        larger = next((shape for shape in self._fitting(size) if shape in self._captured), None)
        # Decodes read the weights, however many they are; tokens of prompts take the time that computing them takes.
        if larger is None or not size.prefills or larger.num_tokens <= _MOST_PADDED * best.num_tokens:
            return larger
        return None

    def _fitting(self, size: StepSize) -> Iterator[GraphShape]:
        """Smallest first."""
        for shape in self._by_size[size.prefills > 0]:
            if (
                shape.sequences >= size.decodes
                and shape.context >= size.context
                and shape.prefill_tokens >= size.prefill_tokens
                and shape.prefills >= size.prefills
            ):
                yield shape


class StepGraphs:
    """The graphs of one model. `compute` runs a step of a shape over the buffer, padded throughout; what it makes on
    its way is in memory that all graphs share, so that only one may be replayed at a time. Of a model with a head for
    drafts each shape has a second graph, which `predict` computes: what the head needs is sampled in between."""

    def __init__(
        self,
        shapes: Iterable[GraphShape],
        compute: Callable[[GraphShape], Computed],
        device: torch.device,
        predict: Callable[[GraphShape], Tensor] | None = None,
    ) -> None:
        self.choice = GraphChoice(shapes)
        self._compute, self._predict = compute, predict
        self._device = device
        self._captured: dict[GraphShape, _Captured] = {}
        self._stream = torch.cuda.Stream(device)
        self._pool = torch.cuda.graph_pool_handle()

    def replay(self, shape: GraphShape) -> Computed:
        """Compute the step of `shape` that the buffer holds. The result is valid until the next replay."""
        captured = self._captured[shape]
        captured.graph.replay()
        return captured.result

    def replay_head(self, shape: GraphShape) -> Tensor:
        """What the head predicts behind the sequences of the step of `shape` that was replayed last: [rows of logits]
        int64, valid as `replay`'s result is."""
        captured = self._captured[shape]
        assert captured.head is not None
        assert captured.predicted is not None
        captured.head.replay()
        return captured.predicted

    def warm_up(self, shape: GraphShape) -> None:
        """Compute the step of `shape` that the buffer holds once, in memory that other steps use too: that loads its
        kernels, which a capture may not.

        Raises:
            torch.OutOfMemoryError: the device has less memory than the plan counted on.
        """
        self._compute(shape)
        if self._predict is not None:
            self._predict(shape)

    def capture(self, shape: GraphShape) -> bool:
        """Capture the graph of `shape` after its `warm_up`; False where the device has no memory for it."""
        self._stream.wait_stream(torch.cuda.current_stream(self._device))
        with torch.cuda.stream(self._stream):
            try:
                captured = _Captured(*self._graph_of(lambda: self._compute(shape)))
                if (predict := self._predict) is not None:
                    head, predicted = self._graph_of(lambda: predict(shape))
                    captured = captured._replace(head=head, predicted=predicted)
            except torch.OutOfMemoryError:
                return False
        torch.cuda.current_stream(self._device).wait_stream(self._stream)
        self._captured[shape] = captured
        self.choice.add(shape)
        return True

    def _graph_of(self, compute: Callable[[], _T]) -> tuple[torch.cuda.CUDAGraph, _T]:
        """On the present stream, with the result that its replays overwrite."""
        graph = torch.cuda.CUDAGraph()
        self._stream.synchronize()
        graph.capture_begin(pool=self._pool, capture_error_mode="thread_local")
        try:
            result = compute()
        except Exception:
            with contextlib.suppress(RuntimeError):  # that the capture failed: the exception says why
                graph.capture_end()
            raise
        graph.capture_end()
        return graph, result

    def drop(self, shape: GraphShape) -> None:
        """Do without `shape`, captured or not, and without all that are missing."""
        self._captured.pop(shape, None)
        self.choice.drop(shape)
