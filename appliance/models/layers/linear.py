"""Linear layers, single and fused, and where their parts lie in a checkpoint."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from appliance.checkpoint.families.base import Projection
from appliance.models.base import BuildContext
from appliance.models.layers.weight import Weight
from kernels.fp8_linear.rounded import Rounded, rows_of


class Linear:
    """One weight, or several of the same input stacked into one product: `parts` gives the name and rows of each."""

    def __init__(
        self,
        context: BuildContext,
        prefix: str,
        inputs: int,
        parts: dict[str, int],
        bias: bool = False,
        *,
        gated: bool = False,
    ) -> None:
        """`gated`: the two parts are gate and up, and the product is called as such."""
        outputs = sum(parts.values())
        self._prefix, self._parts = prefix, parts
        self.weight = Weight(context, prefix + next(iter(parts)), outputs, inputs)
        self.bias = context.empty(outputs) if bias else None
        kernels = context.kernels
        if self.in_fp8:
            self._product = kernels.at("fp8_linear", outputs, inputs)
        else:
            self._product = context.linear_for(self.weight.values)
        self._activate = kernels.at("gated_activation", outputs // 2).call if gated else None

    @property
    def in_fp8(self) -> bool:
        return self.weight.scale is not None

    def __call__(self, x: Tensor | Rounded) -> Tensor:
        """[T, inputs] -> [T, outputs]."""
        product, weight = self._product.call, self.weight
        out: Tensor = (
            product(rows_of(x), weight.values, self.bias)
            if weight.scale is None
            else product(x, weight.values, weight.scale, self.bias)
        )
        return out

    def gated(self, x: Tensor | Rounded, activation: str, limit: float | None) -> Tensor:
        """[T, inputs] -> [T, outputs / 2], act(gate) * up."""
        activate, weight = self._activate, self.weight
        assert activate is not None, "not made as gated"
        product, ending = self._product.call, (self.bias, activation, limit, activate)
        out: Tensor = (
            product(rows_of(x), weight.values, *ending)
            if weight.scale is None
            else product(x, weight.values, weight.scale, *ending)
        )
        return out

    def reorder(self, rows: Tensor) -> None:
        """The weight is filled: put its rows, and so its outputs, into another order."""
        self.weight.reorder(rows)
        if self.bias is not None:
            self.bias = self.bias[rows]

    def prepare(self) -> None:
        """The weight is filled, and may take the layout of its kernel."""
        if self.weight.scale is None:
            self.weight.values = self._product.prepare(self.weight.values)

    def destinations(self) -> Iterator[tuple[str, Tensor]]:
        start = 0
        for part, rows in self._parts.items():
            yield from self.weight.destinations(self._prefix + part, start, rows)
            if self.bias is not None:
                yield f"{self._prefix}{part}.bias", self.bias[start : start + rows]
            start += rows


def rows_by_part(heads: int, sizes: tuple[int, ...], device: torch.device) -> tuple[Tensor, ...]:
    """Where the rows of each part are, all heads' together, in a weight that has `sizes` rows of each for every head in
    turn."""
    starts = torch.arange(heads, device=device)[:, None] * sum(sizes)
    offsets = torch.arange(sum(sizes), device=device).split(sizes)
    return tuple((starts + offset).flatten() for offset in offsets)


def linear_of(context: BuildContext, *product: Projection) -> Linear:
    """Projections of one input, as the checkpoint's family describes them."""
    return Linear(context, "", product[0].columns, {part.name: part.rows for part in product}, product[0].bias)
