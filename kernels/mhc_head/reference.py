"""mHC behind the last layer, in plain torch."""

from __future__ import annotations

import torch
from torch import Tensor

from kernels.mhc_pre.reference import projected, weighted


def mhc_head(streams: Tensor, weight: Tensor, scale: Tensor, base: Tensor, eps: float, norm_eps: float) -> Tensor:
    """The sum of the streams [T, n, H] by sigmoid(weight * scale + base) + eps, as `mhc_pre` weights them: [T, H].

    `weight` [n, n * H], `scale` [1] and `base` [n] are float32.
    """
    return weighted(streams, torch.sigmoid(projected(streams, weight, norm_eps) * scale + base) + eps)
