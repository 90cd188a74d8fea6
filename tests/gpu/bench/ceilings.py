"""What this GPU can do at most, measured: copy bandwidth, and the rates of its matrix units on random data.

`python -m tests.gpu.bench.ceilings` prints the copy bandwidth alone, in bytes a second.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from triton.testing import do_bench


class Ceilings(NamedTuple):
    """Bytes read plus written, or operations, a second; `fp8` is 0 where torch has no FP8 product for this GPU."""

    copy: float
    bf16: float
    fp8: float


def median_s(call: Callable[[], object], reps_ms: int = 150) -> float:
    """Seconds of one call, by events on the device, the L2 cache cleared before each."""
    return float(do_bench(call, warmup=40, rep=reps_ms, return_mode="median")) / 1e3


def measure(device: torch.device) -> Ceilings:
    copy = copy_bandwidth(device)
    size = 8192
    a, b = (torch.randn(size, size, device=device, dtype=torch.bfloat16) for _ in range(2))
    bf16 = 2 * size**3 / median_s(lambda: a @ b)
    return Ceilings(copy, bf16, _fp8_rate(a, b))


def copy_bandwidth(device: torch.device) -> float:
    source = torch.randn(1 << 30, device=device, dtype=torch.float32)  # 4 GiB
    target = torch.empty_like(source)
    return 2 * source.nbytes / median_s(lambda: target.copy_(source))


def _fp8_rate(a: torch.Tensor, b: torch.Tensor) -> float:
    if torch.cuda.get_device_capability(a.device) < (8, 9):
        return 0.0
    left, right = a.to(torch.float8_e4m3fn), b.to(torch.float8_e4m3fn).t()
    one = torch.ones((), device=a.device)
    size = a.shape[0]
    return (
        2
        * size**3
        / median_s(lambda: torch._scaled_mm(left, right, scale_a=one, scale_b=one, out_dtype=torch.bfloat16))
    )


if __name__ == "__main__":
    print(copy_bandwidth(torch.device("cuda")))
