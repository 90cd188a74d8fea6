"""A function of kernels, with a constant of a name that `odd_kernels` has as well."""

from __future__ import annotations

import triton
import triton.language as tl

SCALE = tl.constexpr(4)


@triton.jit
def scaled(column):
    return (column * SCALE).to(tl.float32)
