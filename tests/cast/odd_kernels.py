"""Kernels that a cast must be able to name: one that is well, and others that are wrong in a way each."""

from __future__ import annotations

import os
import signal
from typing import Any

import triton
import triton.language as tl

from tests.cast.odd_function import scaled


@triton.jit(do_not_specialize=["count"])
def well_kernel(x_ptr, count, BLOCK: tl.constexpr):
    column = tl.arange(0, BLOCK)
    tl.store(x_ptr + column, column.to(tl.float32), mask=column < count)


SCALE = tl.constexpr(3)


@triton.jit(do_not_specialize=["count"])
def twice_kernel(x_ptr, count, BLOCK: tl.constexpr):
    column = tl.arange(0, BLOCK) * SCALE
    tl.store(x_ptr + column, scaled(column), mask=column < count)


@triton.jit
def forgetful_kernel(x_ptr, count, BLOCK: tl.constexpr):
    column = tl.arange(0, BLOCK)
    tl.store(x_ptr + column, column.to(tl.float32), mask=column < count)


@triton.jit(do_not_specialize=["count"])
def greedy_kernel(x_ptr, count, BLOCK: tl.constexpr):
    row, column = tl.arange(0, BLOCK)[:, None] * BLOCK, tl.arange(0, BLOCK)[None, :]
    total = tl.zeros((BLOCK, BLOCK), tl.float32)
    for step in range(count):
        left = tl.load(x_ptr + step + row + column).to(tl.bfloat16)
        total = tl.dot(left, tl.load(x_ptr + step * 2 + row + column).to(tl.bfloat16), total)
    tl.store(x_ptr + row + column, total)


@triton.jit(do_not_specialize=["count"])
def wrong_kernel(x_ptr, count, BLOCK: tl.constexpr):
    tl.store(x_ptr + tl.arange(0, BLOCK), tl.arange(0, BLOCK + 1))


def __getattr__(name: str) -> Any:
    """Looking for the deadly one ends the process, as a compiler that crashes does."""
    if name == "deadly_kernel":
        os.kill(os.getpid(), signal.SIGKILL)
    raise AttributeError(name)
