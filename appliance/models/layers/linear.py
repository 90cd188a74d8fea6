"""Linear layers, single and fused, and where their parts lie in a checkpoint."""

from __future__ import annotations

from collections.abc import Iterator

from torch import Tensor

from appliance.models.base import BuildContext
from appliance.models.layers.weight import Weight


class Linear:
    """One weight, or several of the same input stacked into one product: `parts` gives the name and rows of each."""

    def __init__(
        self, context: BuildContext, prefix: str, inputs: int, parts: dict[str, int], bias: bool = False
    ) -> None:
        outputs = sum(parts.values())
        self._prefix, self._parts = prefix, parts
        self.weight = Weight(context, prefix + next(iter(parts)), outputs, inputs)
        self.bias = context.empty(outputs) if bias else None
        self._linear, self._fp8_linear = context.kernels.linear, context.kernels.fp8_linear

    def __call__(self, x: Tensor) -> Tensor:
        """[T, inputs] -> [T, outputs]."""
        weight = self.weight
        out: Tensor = (
            self._linear(x, weight.values, self.bias)
            if weight.scale is None
            else self._fp8_linear(x, weight.values, weight.scale, self.bias)
        )
        return out

    def destinations(self) -> Iterator[tuple[str, Tensor]]:
        start = 0
        for part, rows in self._parts.items():
            yield from self.weight.destinations(self._prefix + part, start, rows)
            if self.bias is not None:
                yield f"{self._prefix}{part}.bias", self.bias[start : start + rows]
            start += rows
