"""The matrix of a product, in the model's dtype or in block-scaled FP8, and where a checkpoint's tensors lie in it."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from appliance.checkpoint.quantization import BLOCK, MX_BLOCK
from appliance.models.base import BuildContext


class Weight:
    """[..., rows, columns], of which each of a checkpoint's tensors is some rows.

    `scale` [..., ceil(rows / 128), ceil(columns / 128)] is there only where `values` are kept in FP8; or in MXFP4, two
    numbers a byte [..., rows, columns / 2], with scales [..., rows, columns / 32].
    """

    def __init__(self, context: BuildContext, module: str, *shape: int, expanded: bool = False) -> None:
        """`module` is one of the linear layers that this matrix consists of; the config says how all are stored.
        `expanded`: in the model's dtype, however it is stored."""
        self._context, fp8 = context, context.config.fp8
        self._fp8 = fp8 if fp8 is not None and fp8.covers(module) else None
        self._in_fp4 = self._fp8 is not None and self._fp8.in_fp4(module)
        kept = self._fp8 is not None and context.keep_fp8 and not expanded
        if kept and self._in_fp4:
            self.values = context.empty(*shape[:-1], shape[-1] // 2, dtype=torch.uint8)
        else:
            self.values = context.empty(*shape, dtype=torch.float8_e4m3fn if kept else None)
        self.scale = self._scales(*shape) if kept else None

    @property
    def packed(self) -> bool:
        """Whether it is kept in MXFP4."""
        return self.values.dtype == torch.uint8

    def destinations(
        self, module: str, start: int, rows: int, at: tuple[int, ...] = ()
    ) -> Iterator[tuple[str, Tensor]]:
        """Of the linear layer `module`: `rows` rows from `start` on, in matrix `at` of a stack.

        `start` is a multiple of 128 where scales are kept; reading the config sees to it.
        """
        part = self.values[at][start : start + rows]
        yield f"{module}.weight", part
        if self._fp8 is None:
            return
        scale = f"{module}{self._fp8.scale}"
        if self.scale is not None and self._in_fp4:
            yield scale, self.scale[at][start : start + rows]
        elif self.scale is not None:
            yield scale, self.scale[at][start // BLOCK : -(-(start + rows) // BLOCK)]
        else:
            yield scale, self._scales(*part.shape)  # for the loader, which multiplies them in

    def reorder(self, rows: Tensor) -> None:
        """Put the rows into another order, in which blocks that share a scale stay together."""
        assert not self._in_fp4
        self.values = self.values.view(torch.uint8)[rows].view(self.values.dtype)
        if self.scale is not None:
            self.scale = self.scale[rows[::BLOCK] // BLOCK]

    def _scales(self, *shape: int) -> Tensor:
        if self._in_fp4:
            return self._context.empty(*shape[:-1], shape[-1] // MX_BLOCK, dtype=torch.float8_e8m0fnu)
        blocks = (*shape[:-2], -(-shape[-2] // BLOCK), -(-shape[-1] // BLOCK))
        return self._context.empty(*blocks, dtype=torch.float32)
