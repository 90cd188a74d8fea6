"""Calls of an op that compare a backend with the reference, in the tests and in `ingot verify`.

Each op with a compiled backend has `kernels/<op>/cases.py` with one function

    def cases(arch: int, model: Context | None = None) -> Iterator[Case]

whose cases together launch every variant of the op on `arch` (with `model`: that it needs) at least once, at sizes
small enough for Triton's interpreter. Odd shapes are among them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor


class Case(NamedTuple):
    """`run(function, device)` makes the same inputs each time (from a generator on the CPU), calls `function` and
    returns every tensor that holds a result: what was returned, and what was written in place. `tolerance` bounds
    |result - expected| / |expected| (Frobenius) of each floating-point result; integers must be equal."""

    name: str
    run: Callable[[Callable[..., Any], torch.device], list[Tensor]]
    tolerance: float


def error(result: Tensor, expected: Tensor) -> float:
    """The relative error in float64; infinite where `result` holds NaN, or integers differ."""
    if not expected.dtype.is_floating_point:
        return 0.0 if torch.equal(result.cpu(), expected.cpu()) else float("inf")
    found, wanted = result.cpu().double(), expected.cpu().double()
    if not torch.isfinite(found).equal(torch.isfinite(wanted)):
        return float("inf")
    finite = torch.isfinite(wanted)
    size = wanted[finite].norm()
    value = float((found[finite] - wanted[finite]).norm() / size.clamp(min=1e-30))
    return value if value == value else float("inf")


# Of results that are rounded to the dtype once or twice, from sums in float32.
TOLERANCES = {torch.bfloat16: 1e-2, torch.float16: 2e-3, torch.float32: 1e-5}


def randn(shape: tuple[int, ...], dtype: torch.dtype, device: torch.device, seed: int) -> Tensor:
    """Normal numbers, the same on every device."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(shape, generator=generator).to(dtype).to(device)
