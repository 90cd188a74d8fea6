"""What a family says of itself: how its config.json reads, and which tensors its checkpoints have."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple, Protocol

from appliance.checkpoint.cuts import Cut
from appliance.checkpoint.fields import Fields
from appliance.checkpoint.model_config import ModelConfig

DECODER = "appliance.models.layers.decoder:Decoder"
"""The forward pass of a family that is the pre-norm decoder as it stands."""


class Expected(NamedTuple):
    """A tensor of a checkpoint. `dtype` is that in which it is kept where it is not the model's own. `expanded`: it is
    part of a weight that is always multiplied out when it is loaded, even where others stay in FP8. `cut` None: every
    rank has all of it."""

    shape: tuple[int, ...]
    dtype: str = ""
    expanded: bool = False
    cut: Cut | None = None


class Projection(NamedTuple):
    """A linear layer as a checkpoint has it: `rows` outputs of `columns` inputs. `expanded` is as in `Expected`. With
    `unit` it interleaves parts by head, each of a multiple of so many rows, which the engine brings together. `cut` is
    that of its weight."""

    name: str
    rows: int
    columns: int
    bias: bool = False
    expanded: bool = False
    unit: int = 0
    cut: Cut | None = None


class Family(Protocol):
    """One description, read by preflight, memory plan, loader and allocator alike. `forward` is `module:class`, which
    is imported only by the core."""

    @property
    def model_type(self) -> str: ...

    @property
    def forward(self) -> str: ...

    @property
    def scoring(self) -> str:
        """How its routers score experts where config.json does not say."""

    def read(self, fields: Fields, architecture: str) -> ModelConfig:
        """What config.json means. Raises CheckpointError for what the engine cannot run."""

    def ends(self, config: ModelConfig) -> Iterator[tuple[str, Expected]]:
        """The tensors before and behind the layers."""

    def norms_and_routers(self, config: ModelConfig, layer: int) -> Iterator[tuple[str, Expected]]:
        """Those of a layer that are no projections."""

    def products(self, config: ModelConfig, layer: int) -> Iterator[tuple[Projection, ...]]:
        """The linear layers of a layer but its experts', those together that the engine computes as one product."""

    def expert(self, config: ModelConfig, layer: int, expert: int) -> tuple[Projection, ...]:
        """The linear layers of one expert; `Experts.layers` says which layers have such."""
