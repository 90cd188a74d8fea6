"""CUDA graphs that are computed anew at each replay, which a CPU can do too."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace

import pytest
import torch

from appliance.checkpoint.memory.graph_shapes import GraphShape
from appliance.engine import runner
from appliance.engine.graphs import Computed, GraphChoice
from appliance.engine.inputs import Inputs, StepInputs
from kernels.paged_attention.metadata import AttentionMetadata

PADDED = StepInputs.padded


class ComputedGraphs:
    """Graphs without CUDA."""

    def __init__(
        self,
        shapes: Iterable[GraphShape],
        compute: Callable[[GraphShape], Computed],
        _device: torch.device,
        predict: Callable[[GraphShape], torch.Tensor] | None,
    ) -> None:
        self.choice = GraphChoice(shapes)
        self._compute, self._predict = compute, predict

    def warm_up(self, shape: GraphShape) -> None:
        self._compute(shape)

    def capture(self, shape: GraphShape) -> bool:
        self.choice.add(shape)
        return True

    def drop(self, shape: GraphShape) -> None:
        self.choice.drop(shape)

    def replay(self, shape: GraphShape) -> Computed:
        assert not self.choice.is_missing(shape)
        return self._compute(shape)

    def replay_head(self, shape: GraphShape) -> torch.Tensor:
        assert not self.choice.is_missing(shape)
        assert self._predict is not None
        return self._predict(shape)


def padded_for_torch(inputs: StepInputs, shape: GraphShape) -> Inputs:
    """Torch's attention reads lengths on the host, for which reason no graph may hold it: here they are true."""
    padded = PADDED(inputs, shape)
    windowed = {window: as_they_are(attention) for window, attention in padded.batch.windowed.items()}
    return padded._replace(
        batch=replace(padded.batch, attention=as_they_are(padded.batch.attention), windowed=windowed)
    )


def as_they_are(bounds: AttentionMetadata) -> AttentionMetadata:
    query_lens, context_lens = bounds.query_start_loc.diff().tolist(), bounds.seq_lens.tolist()
    assert all(true <= most for true, most in zip(query_lens, bounds.query_lens, strict=True))
    assert all(true <= most for true, most in zip(context_lens, bounds.context_lens, strict=True))
    return replace(bounds, query_lens=query_lens, context_lens=context_lens, bounds=False)


def compute_graphs(monkeypatch: pytest.MonkeyPatch) -> None:
    """For engines that are made from here on."""
    monkeypatch.setattr(runner, "StepGraphs", ComputedGraphs)
    monkeypatch.setattr(StepInputs, "padded", padded_for_torch)
