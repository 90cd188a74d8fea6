"""Block-scaled FP8 linear in plain torch."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from kernels.fp8_linear import GROUP
from kernels.fp8_linear.rounded import Rounded, rows_of
from kernels.gated_activation.reference import gated_activation
from kernels.grouped_linear.reference import grouped_linear


def fp8_linear(
    x: Tensor | Rounded,
    weight: Tensor,
    weight_scale: Tensor,
    bias: Tensor | None = None,
    activation: str = "",
    limit: float | None = None,
    activate: Callable[..., Tensor] = gated_activation,
    *,
    groups: int = 1,
) -> Tensor:
    """`x` [T, I] times the dequantised weight transposed, plus `bias` [O]: [T, O] in the dtype of `x`.

    With an `activation` the result is act(gate) * up, [T, O / 2], as `linear` has it.

    With several groups `x` is [T, groups * I], of which each has a part that the next O / groups rows of the weight
    multiply, as by `grouped_linear`; there is no bias then.

    Args:
        weight: [O, I] in float8_e4m3fn. I is a multiple of 16.
        weight_scale: [ceil(O / 128), ceil(I / 128)] float32, by which each block of 128 x 128 is multiplied.

    The activations are not rounded here, nor taken rounded. A backend that multiplies in FP8 rounds them, each group of
    128 of a token by its own scale (DeepSeek-AI, 2024, section 3.3), which moves the result by about 3% of its norm.
    """
    x = rows_of(x)
    multiplied_out = dequantise(weight, weight_scale, x.dtype)
    if groups > 1:
        assert bias is None, "a product in groups has no bias"
        return grouped_linear(x, multiplied_out)
    product = torch.nn.functional.linear(x, multiplied_out, bias)
    return activate(product, activation, limit) if activation else product


def dequantise(weight: Tensor, scale: Tensor, dtype: torch.dtype) -> Tensor:
    """[..., O, I] with a scale for each block of 128 x 128, multiplied out in float32."""
    rows, columns = weight.shape[-2:]
    wide = scale.repeat_interleave(GROUP, -2)[..., :rows, :].repeat_interleave(GROUP, -1)[..., :columns]
    return (weight.float() * wide).to(dtype)


def quantise(x: Tensor) -> tuple[Tensor, Tensor]:
    """`x` [T, I] -> float8_e4m3fn [T, I] and scales [T, ceil(I / 128)] float32: the largest of each group becomes
    448."""
    tokens, columns = x.shape
    groups = -(-columns // GROUP)
    padded = torch.nn.functional.pad(x.float(), (0, groups * GROUP - columns)).view(tokens, groups, GROUP)
    scale = padded.abs().amax(-1).clamp(min=1e-10) / torch.finfo(torch.float8_e4m3fn).max
    rounded = (padded / scale[..., None]).to(torch.float8_e4m3fn)
    return rounded.flatten(1)[:, :columns], scale
