"""RMS norm with its weight."""

from __future__ import annotations

from collections.abc import Iterator

from torch import Tensor

from appliance.models.base import BuildContext


class RMSNorm:
    """Normalises the last dimension; adds the residual first if one is given."""

    def __init__(self, context: BuildContext, name: str, size: int) -> None:
        self._name = name
        self.weight = context.empty(size)
        self._eps = context.config.rms_norm_eps
        self._rms_norm = context.kernels.rms_norm

    def __call__(self, x: Tensor, residual: Tensor | None = None) -> Tensor:
        """[..., size] -> the same; `residual` becomes x + residual in place."""
        out: Tensor = self._rms_norm(x, self.weight, self._eps, residual)
        return out

    def destinations(self) -> Iterator[tuple[str, Tensor]]:
        yield f"{self._name}.weight", self.weight
