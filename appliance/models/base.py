"""What the engine asks of a model family."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from appliance.checkpoint.model_config import ModelConfig
from appliance.models.batch import ForwardBatch, LayerCache
from appliance.models.collectives import ALONE, Group
from kernels.binding import Bound, Kernels
from kernels.fp8_linear.rounded import Rounded


@dataclass(frozen=True)
class BuildContext:
    """Everything a model needs to allocate itself. `keep_fp8`: weights in block-scaled FP8 stay so. Where a `group` of
    ranks shares the model, `config` is what each of them has of it."""

    config: ModelConfig
    kernels: Kernels
    device: torch.device
    dtype: torch.dtype
    max_model_len: int
    keep_fp8: bool = False
    group: Group = ALONE

    def linear_for(self, weight: Tensor) -> Bound:
        """What multiplies by a `weight` [O, I] that is not in FP8."""
        dtype = "" if weight.dtype is self.dtype else str(weight.dtype).removeprefix("torch.")
        return self.kernels.at("linear", *weight.shape, dtype=dtype)

    def float32_linear_for(self, weight: Tensor) -> Callable[[Tensor], Tensor]:
        """What multiplies [T, I] by a `weight` [O, I], both in the model's dtype: [T, O] in float32."""
        product = self.linear_for(weight).call

        def multiply(x: Tensor) -> Tensor:
            out: Tensor = product(x, weight, out=x.new_empty(len(x), len(weight), dtype=torch.float32))
            return out

        return multiply

    def empty(self, *shape: int, dtype: torch.dtype | None = None) -> Tensor:
        """Room for a parameter, in the model's dtype unless another is given; the checkpoint fills it."""
        return torch.empty(shape, device=self.device, dtype=dtype or self.dtype)


class Mixer(Protocol):
    """How a layer mixes tokens: each kind has its own cache, which its spec in the config describes."""

    @property
    def in_fp8(self) -> bool:
        """Whether it multiplies the hidden state by weights in FP8, so that it may be given it rounded."""
        ...

    def __call__(self, x: Tensor | Rounded, batch: ForwardBatch, cache: LayerCache) -> Tensor:
        """[T, hidden] -> [T, hidden], of which each rank has a part of the sum; what is to be kept of the tokens is
        written into `cache`."""

    def prepare(self) -> None:
        """As `Model.prepare`."""

    def destinations(self) -> Iterator[tuple[str, Tensor]]:
        """As `Model.destinations`."""

    def optional_destinations(self) -> Iterator[tuple[str, Tensor]]:
        """As `Model.optional_destinations`."""


class Drafter(Protocol):
    """Predicts one token further than its model, whose weights it is loaded with. What `forward` gives goes through the
    model's `compute_logits`; what it keeps is in the last of the caches."""

    def forward(self, batch: ForwardBatch, hidden: Tensor, cache: LayerCache) -> Tensor:
        """[T, hidden], of the model's own [T, hidden], or what it leaves in `Carried.for_head`, and the token behind
        each, which is its id in `batch`."""
        ...

    def room(self, tokens: int) -> Tensor:
        """For what `forward` is given of so many tokens, uninitialised."""
        ...

    def prepare(self) -> None:
        """As `Model.prepare`."""

    def destinations(self) -> Iterator[tuple[str, Tensor]]:
        """As `Model.destinations`."""

    def optional_destinations(self) -> Iterator[tuple[str, Tensor]]:
        """As `Model.optional_destinations`."""


class Model(Protocol):
    """A causal language model whose parameters are allocated and not yet filled."""

    @property
    def drafter(self) -> Drafter | None:
        """None where the config does not say that it drafts."""
        ...

    def destinations(self) -> Mapping[str, Tensor]:
        """Where each tensor of the checkpoint goes, by its name there: a parameter, or the part of a fused one.

        The scales of a weight that is not kept in FP8 are among them, and only there: who loads the weights multiplies
        them in (`appliance.engine.weights`).
        """
        ...

    def optional_destinations(self) -> Mapping[str, Tensor]:
        """Where tensors go that a checkpoint may lack, each of which holds one number: the scales of an FP8 cache.

        Several names may share a destination, as exporters do not agree on them.
        """
        ...

    def prepare(self) -> None:
        """Every destination is filled: weights may now take the layouts of their kernels.

        Raises:
            ValueError: a scale is not a positive number.
        """
        ...

    def forward(self, batch: ForwardBatch, caches: Sequence[LayerCache]) -> Tensor:
        """Hidden states [T, hidden], after the last norm; what layers keep is written into `caches`."""
        ...

    def compute_logits(self, hidden: Tensor, out: Tensor | None = None) -> Tensor:
        """Logits [D, vocab_size], float32, of the D rows of `forward`'s result whose next token is wanted; in `out`
        where it is given, which is contiguous and may be of the model's dtype."""
        ...
