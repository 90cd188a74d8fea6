"""The matrix of a product, in the model's dtype or in block-scaled FP8, and where a checkpoint's tensors lie in it."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from appliance.checkpoint.layout import SCALE
from appliance.checkpoint.quantization import BLOCK
from appliance.models.base import BuildContext


class Weight:
    """[..., rows, columns], of which each of a checkpoint's tensors is some rows.

    `scale` [..., ceil(rows / 128), ceil(columns / 128)] is there only where `values` are kept in FP8.
    """

    def __init__(self, context: BuildContext, module: str, *shape: int, expanded: bool = False) -> None:
        """`module` is one of the linear layers that this matrix consists of; the config says how all are stored.
        `expanded`: in the model's dtype, however it is stored."""
        self._context = context
        self._scaled = context.config.fp8 is not None and context.config.fp8.covers(module)
        kept = self._scaled and context.keep_fp8 and not expanded
        self.values = context.empty(*shape, dtype=torch.float8_e4m3fn if kept else None)
        self.scale = self._scales(*shape) if kept else None

    def destinations(
        self, module: str, start: int, rows: int, at: tuple[int, ...] = ()
    ) -> Iterator[tuple[str, Tensor]]:
        """Of the linear layer `module`: `rows` rows from `start` on, in matrix `at` of a stack.

        `start` is a multiple of 128 where there are scales; reading the config sees to it.
        """
        part = self.values[at][start : start + rows]
        yield f"{module}.weight", part
        if self.scale is not None:
            yield f"{module}.weight{SCALE}", self.scale[at][start // BLOCK : -(-(start + rows) // BLOCK)]
        elif self._scaled:
            yield f"{module}.weight{SCALE}", self._scales(*part.shape)  # for the loader, which multiplies them in

    def reorder(self, rows: Tensor) -> None:
        """Put the rows into another order, in which blocks that share a scale stay together."""
        self.values = self.values.view(torch.uint8)[rows].view(self.values.dtype)
        if self.scale is not None:
            self.scale = self.scale[rows[::BLOCK] // BLOCK]

    def _scales(self, *shape: int) -> Tensor:
        blocks = (*shape[:-2], -(-shape[-2] // BLOCK), -(-shape[-1] // BLOCK))
        return self._context.empty(*blocks, dtype=torch.float32)
