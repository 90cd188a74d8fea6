"""What the engine asks of a model family."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from appliance.checkpoint.config import ModelConfig
from appliance.models.batch import ForwardBatch, LayerCache
from kernels.binding import Kernels


@dataclass(frozen=True)
class BuildContext:
    """Everything a model needs to allocate itself."""

    config: ModelConfig
    kernels: Kernels
    device: torch.device
    dtype: torch.dtype
    max_model_len: int

    def empty(self, *shape: int) -> Tensor:
        """Room for a parameter; the checkpoint fills it."""
        return torch.empty(shape, device=self.device, dtype=self.dtype)


class Model(Protocol):
    """A causal language model whose parameters are allocated and not yet filled."""

    def destinations(self) -> Mapping[str, Tensor]:
        """Where each tensor of the checkpoint goes, by its name there: a parameter, or the part of a fused one."""
        ...

    def forward(self, batch: ForwardBatch, caches: Sequence[LayerCache]) -> Tensor:
        """Logits [D, vocab_size], float32, for `batch.logits_rows`; keys and values are written into `caches`."""
        ...
