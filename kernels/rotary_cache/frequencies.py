"""The angles of rotary embeddings: plain, linear, llama3 and YaRN scaling.

Sources: Su et al. 2021 (RoFormer); Chen et al. 2023 (linear interpolation); the Llama 3.1 release (piecewise); Peng
    et al. 2023 (YaRN).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

SCALINGS = ("default", "linear", "llama3", "yarn")


def inverse_frequencies(
    rotary_dim: int, theta: float, scaling: Mapping[str, Any] | None = None
) -> tuple[Tensor, float]:
    """The inverse frequencies [rotary_dim / 2] in float32, and the factor by which cosines and sines are multiplied.

    `scaling` is the checkpoint's `rope_scaling` / `rope_parameters`, with its type under `rope_type` or `type`.

    Raises:
        ValueError: the type of scaling is not one of `SCALINGS`.
    """
    exponents = torch.arange(0, rotary_dim, 2, dtype=torch.int64).float() / rotary_dim
    plain = 1.0 / (theta**exponents)
    scaling = scaling or {}
    kind = scaling.get("rope_type") or scaling.get("type") or "default"
    if kind == "default":
        return plain, 1.0
    if kind == "linear":
        return plain / float(scaling["factor"]), 1.0
    if kind == "llama3":
        return _llama3(plain, scaling), 1.0
    if kind == "yarn":
        return _yarn(plain, rotary_dim, theta, scaling)
    raise ValueError(f"rope scaling {kind!r} is not supported (supported: {', '.join(SCALINGS)})")


def cos_sin_table(inverse: Tensor, factor: float, length: int, dtype: torch.dtype) -> Tensor:
    """[length, 2 * len(inverse)]: cosines of each position in the first half of a row, sines in the second.

    Computed in float32 and then rounded to `dtype`, as the published models do it.
    """
    angles = torch.outer(torch.arange(length, dtype=torch.float32), inverse)  # [L, R/2]
    return torch.cat((angles.cos(), angles.sin()), dim=-1).mul_(factor).to(dtype)


def _llama3(plain: Tensor, scaling: Mapping[str, Any]) -> Tensor:
    """Long wavelengths are slowed by `factor`, short ones kept, those between are blended."""
    factor, original = float(scaling["factor"]), float(scaling["original_max_position_embeddings"])
    low, high = float(scaling["low_freq_factor"]), float(scaling["high_freq_factor"])
    wavelength = 2 * math.pi / plain
    blend = ((original / wavelength - low) / (high - low)).clamp(0, 1)
    return (1 - blend) * plain / factor + blend * plain


def _yarn(plain: Tensor, rotary_dim: int, theta: float, scaling: Mapping[str, Any]) -> tuple[Tensor, float]:
    """Dimensions that turn often keep their frequency, those that turn rarely are interpolated."""
    factor, original = float(scaling["factor"]), float(scaling["original_max_position_embeddings"])

    def dimension(rotations: float) -> float:
        """The dimension that makes `rotations` turns over the original context."""
        return rotary_dim * math.log(original / (rotations * 2 * math.pi)) / (2 * math.log(theta))

    low = dimension(float(scaling.get("beta_fast") or 32))
    high = dimension(float(scaling.get("beta_slow") or 1))
    if scaling.get("truncate", True):
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, rotary_dim - 1)
    ramp = ((torch.arange(rotary_dim // 2).float() - low) / max(high - low, 0.001)).clamp(0, 1)
    return plain / factor * ramp + plain * (1 - ramp), _yarn_attention_factor(factor, scaling)


def _yarn_attention_factor(factor: float, scaling: Mapping[str, Any]) -> float:
    def scale(mscale: float) -> float:
        return 0.1 * mscale * math.log(factor) + 1.0 if factor > 1 else 1.0

    if scaling.get("attention_factor") is not None:
        return float(scaling["attention_factor"])
    if scaling.get("mscale") and scaling.get("mscale_all_dim"):
        return scale(float(scaling["mscale"])) / scale(float(scaling["mscale_all_dim"]))
    return scale(1.0)
