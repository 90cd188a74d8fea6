"""mHC before a sub-layer, in plain torch."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import linear


class Connections(NamedTuple):
    """`eps` is added to weights and to the denominators of `iterations` rounds of normalising (Sinkhorn and Knopp,
    1967), `norm_eps` to the mean square of a token's streams."""

    eps: float
    norm_eps: float
    iterations: int


def mhc_pre(
    streams: Tensor, weight: Tensor, scale: Tensor, base: Tensor, connections: Connections
) -> tuple[Tensor, Tensor, Tensor]:
    """What goes into a sub-layer, and how its result and the streams become the next streams. All in float32.

    Args:
        streams: [T, n, H].
        weight: [2 * n + n * n, n * H] float32, whose rows give the three below; base: [2 * n + n * n] float32.
        scale: [3] float32, one for each of the three.

    Returns:
        the input [T, H] in the dtype of `streams`; `post` [T, n] and `mix` [T, n, n], both float32, as `mhc_post` takes
        them.
    """
    count = streams.shape[1]
    pre, post, mix = projected(streams, weight, connections.norm_eps).split((count, count, count * count), dim=-1)
    pre_base, post_base, mix_base = base.split((count, count, count * count))
    weights = torch.sigmoid(pre * scale[0] + pre_base) + connections.eps
    post = 2 * torch.sigmoid(post * scale[1] + post_base)
    mix = torch.softmax((mix * scale[2] + mix_base).unflatten(-1, (count, count)), dim=-1) + connections.eps
    mix = mix / (mix.sum(dim=-2, keepdim=True) + connections.eps)
    for _ in range(connections.iterations - 1):
        mix = mix / (mix.sum(dim=-1, keepdim=True) + connections.eps)
        mix = mix / (mix.sum(dim=-2, keepdim=True) + connections.eps)
    return weighted(streams, weights), post, mix


def weighted(streams: Tensor, weights: Tensor) -> Tensor:
    """The sum of the streams [T, n, H] by `weights` [T, n] float32: [T, H] in their dtype."""
    return (weights.unsqueeze(-1) * streams.float()).sum(dim=1).to(streams.dtype)


def projected(streams: Tensor, weight: Tensor, norm_eps: float) -> Tensor:
    """Of a token's streams together, divided by their root mean square."""
    wide = streams.flatten(1).float()
    return linear(wide, weight) * torch.rsqrt(wide.square().mean(-1, keepdim=True) + norm_eps)
