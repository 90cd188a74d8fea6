"""mHC behind a sub-layer, in plain torch."""

from __future__ import annotations

import torch
from torch import Tensor


def mhc_post(x: Tensor, streams: Tensor, post: Tensor, mix: Tensor) -> Tensor:
    """The next streams: of stream j post[j] * x + sum over i of mix[i, j] * streams[i], in float32.

    Args:
        x: [T, H], the sub-layer's result.
        streams: [T, n, H], as they went into `mhc_pre`.
        post, mix: [T, n] and [T, n, n] float32, as it gave them.

    Returns:
        [T, n, H], new, in the dtype of `streams`.
    """
    mixed = torch.bmm(mix.transpose(1, 2), streams.float())
    return mixed.add_(post.unsqueeze(-1) * x.float().unsqueeze(1)).to(streams.dtype)
