"""Linear layers, single and fused, and where their parts lie in a checkpoint."""

from __future__ import annotations

from collections.abc import Iterator

from torch import Tensor

from appliance.models.base import BuildContext


class Linear:
    """One weight, or several of the same input stacked into one product: `parts` gives the name and rows of each."""

    def __init__(self, context: BuildContext, inputs: int, parts: dict[str, int], bias: bool = False) -> None:
        outputs = sum(parts.values())
        self.parts = parts
        self.weight = context.empty(outputs, inputs)
        self.bias = context.empty(outputs) if bias else None
        self._linear = context.kernels.linear

    def __call__(self, x: Tensor) -> Tensor:
        """[T, inputs] -> [T, outputs]."""
        out: Tensor = self._linear(x, self.weight, self.bias)
        return out

    def destinations(self, prefix: str) -> Iterator[tuple[str, Tensor]]:
        start = 0
        for name, rows in self.parts.items():
            yield f"{prefix}{name}.weight", self.weight[start : start + rows]
            if self.bias is not None:
                yield f"{prefix}{name}.bias", self.bias[start : start + rows]
            start += rows
