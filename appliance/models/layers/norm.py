"""RMS norm with its weight."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from appliance.models.base import BuildContext
from appliance.models.collectives import Group
from kernels.fp8_linear.rounded import Rounded


class NormWeight:
    """Of a norm that is part of another op."""

    def __init__(self, context: BuildContext, name: str, size: int) -> None:
        self._name = name
        self.weight = context.empty(size)

    def destinations(self) -> Iterator[tuple[str, Tensor]]:
        yield f"{self._name}.weight", self.weight


class RMSNorm(NormWeight):
    """Normalises the last dimension; adds the residual first if one is given."""

    def __init__(
        self, context: BuildContext, name: str, size: int, eps: float | None = None, *, rounds: bool = False
    ) -> None:
        """`eps` None: what the config says. `rounds`: what is normed goes to products in FP8."""
        super().__init__(context, name, size)
        self._eps = context.config.rms_norm_eps if eps is None else eps
        self._offset = context.config.norm_offset
        self._rounds = rounds
        self._rms_norm = context.kernels.at("rms_norm", size).call

    def __call__(self, x: Tensor, residual: Tensor | None = None) -> Tensor:
        """[..., size] -> the same; `residual` becomes x + residual in place."""
        out: Tensor = self._rms_norm(x, self.weight, self._eps, residual, self._offset)
        return out

    def rounded(self, x: Tensor, residual: Tensor) -> Tensor | Rounded:
        """The same, for products that may be in FP8."""
        out: Tensor | Rounded = self._rms_norm(x, self.weight, self._eps, residual, self._offset, self._rounds)
        return out

    def over_ranks(self, x: Tensor, group: Group) -> Tensor:
        """Of rows that the ranks share: each has equally many of their numbers, or the same as some others."""
        wide = x.float()
        mean = group.sum(wide.square().mean(dim=-1, keepdim=True)) / group.count
        return (wide * torch.rsqrt(mean + self._eps)).to(x.dtype) * (self.weight + self._offset)
