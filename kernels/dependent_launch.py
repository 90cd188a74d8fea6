"""Programmatic dependent launch, from sm_90 on: a kernel's programs may start while the kernel before it in the stream
still runs, and wait for that one's results where they first need them. What a launch costs is hidden so, between the
kernels of a CUDA graph too.

Every kernel waits before it touches memory that others write; `kernels/launch.py` launches all of them like this. A
kernel that another library launches between two of ours starts after the first one's end and ends before the second
one goes on, as ever.
"""

from __future__ import annotations

import triton
import triton.language as tl
from triton import knobs
from triton.language.extra import cuda
from triton.language.target_info import cuda_capability_geq


@triton.constexpr_function
def overlaps():
    """Whether the target can; the interpreter cannot."""
    return not knobs.runtime.interpret and cuda_capability_geq(9, 0)


@triton.jit
def let_next_start():
    """Let the next kernel's programs start as soon as there is room for them: ahead of `wait_for_previous`, where there
    is something to do before."""
    if overlaps():
        cuda.gdc_launch_dependents()


@triton.jit
def wait_for_previous():
    """Let the next kernel's programs start as soon as there is room for them, and wait for all that the kernels before
    this one have written."""
    let_next_start()
    if overlaps():
        cuda.gdc_wait()


@triton.jit
def prefetch(constants):
    """Have the lines of 128 bytes at the addresses `constants`, which nothing writes, brought into the L2 cache."""
    if overlaps():
        tl.inline_asm_elementwise(
            "prefetch.global.L2 [$1]; mov.u32 $0, 0;", "=r,l", [constants.to(tl.int64)], dtype=tl.int32, is_pure=False,
            pack=1,
        )  # fmt: skip


@triton.jit
def prefetch_and_wait(constants):
    """As `wait_for_previous`; `constants` are brought into the L2 cache meanwhile."""
    let_next_start()
    prefetch(constants)
    if overlaps():
        cuda.gdc_wait()


@triton.jit
def laid_out(pointer):
    """What lies at `pointer`, of what the host copied to the device before the first kernel of the step: it may be read
    while the kernels before still run."""
    return tl.load(pointer)
