"""The rows of a product, as they are and in FP8."""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor


class Rounded(NamedTuple):
    """Rows [T, I] for products with weights in FP8, and what these would round them to where that has been done in
    passing: `values` [T, I] float8_e4m3fn and `scale` [ceil(I / 128), T] float32, or None."""

    rows: Tensor
    values: Tensor | None = None
    scale: Tensor | None = None


def rows_of(x: Tensor | Rounded) -> Tensor:
    """`x` as it is."""
    return x.rows if isinstance(x, Rounded) else x
