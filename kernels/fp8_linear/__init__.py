"""Matrix product with a weight in block-scaled FP8, the format of DeepSeek V3 and of Qwen's FP8 checkpoints."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from torch import Tensor

GROUP = 128  # neighbouring values of an activation that share a scale; also the edge of a weight's block


class Rounded(NamedTuple):
    """Rows [T, I] for products with weights in FP8, and what these would round them to where that has been done in
    passing: `values` [T, I] float8_e4m3fn and `scale` [ceil(I / 128), T] float32, or None."""

    rows: Tensor
    values: Tensor | None = None
    scale: Tensor | None = None


def rows_of(x: Tensor | Rounded) -> Tensor:
    """`x` as it is."""
    return x.rows if isinstance(x, Rounded) else x
