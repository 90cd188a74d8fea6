"""All-reduce as one Triton kernel: each rank copies its part to where the others can read it, raises a flag in the
memory of each, and sums the parts of all once their flags are up. One launch, in CUDA graphs too: how many sums there
have been is counted on the GPU."""

from __future__ import annotations

import functools

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels.all_reduce import CHUNK, ITEM_BYTES, PART_BYTES, variants
from kernels.all_reduce.shared import Shared
from kernels.dependent_launch import wait_for_previous
from kernels.launch import cdiv, launch
from kernels.variants import Variant

_HALF = tl.constexpr(PART_BYTES // ITEM_BYTES)  # elements of a part


def all_reduce(x: Tensor, shared: Shared) -> Tensor:
    """As `reference.all_reduce`, between processes that each have a GPU; `x` is contiguous, and such that
    `shared.holds` it. All ranks make the same calls in the same order."""
    size = x.numel()
    if size:
        launch(
            all_reduce_kernel, _plan(x.dtype, shared.count), (cdiv(size, CHUNK),),
            x, shared.addresses, shared.turns, size // variants.UNIT, shared.rank,
        )  # fmt: skip
    return x


@functools.cache
def _plan(dtype: torch.dtype, count: int) -> Variant:
    return variants.of(str(dtype).removeprefix("torch."), count)


@triton.constexpr_function
def _interpreted():
    """The interpreter has no other ranks to wait for."""
    return bool(triton.knobs.runtime.interpret)


@triton.jit(do_not_specialize=["size8", "rank"])
def all_reduce_kernel(
    x_ptr,  # [size]
    addresses_ptr,  # [2 * RANKS]: of parts [2, PART_BYTES], and of flags [programs, RANKS]
    turns_ptr,  # [programs]
    size8,
    rank,
    RANKS: tl.constexpr,
    CHUNK: tl.constexpr,
):
    wait_for_previous()
    program = tl.program_id(0)
    place = program * CHUNK + tl.arange(0, CHUNK)
    inside = place < size8 * 8
    turn = tl.load(turns_ptr + program) + 1
    at = (turn & 1) * _HALF + place
    part = tl.pointer_type(x_ptr.dtype.element_ty)
    own = tl.multiple_of(tl.load(addresses_ptr + rank).to(part), 16)
    tl.store(own + at, tl.load(x_ptr + place, mask=inside), mask=inside)
    if not _interpreted():
        tl.debug_barrier()  # the flags speak for all threads
        for other in tl.static_range(RANKS):
            flags = tl.load(addresses_ptr + RANKS + other)
            _raise_flag(flags + (program * RANKS + rank).to(tl.int64) * 4, turn, other)
        mine = tl.load(addresses_ptr + RANKS + rank) + (program * RANKS).to(tl.int64) * 4
        for other in tl.static_range(RANKS):
            _await_flag(mine + other * 4, turn, other)
        tl.debug_barrier()
    total = tl.zeros((CHUNK,), tl.float32)
    for other in tl.static_range(RANKS):
        theirs = tl.multiple_of(tl.load(addresses_ptr + other).to(part), 16)
        total += tl.load(theirs + at, mask=inside, other=0.0, volatile=True).to(tl.float32)
    tl.store(x_ptr + place, total.to(x_ptr.dtype.element_ty), mask=inside)
    tl.store(turns_ptr + program, turn)


@triton.jit
def _raise_flag(address, turn, thread: tl.constexpr):
    """Thread `thread` writes `turn` there, after all that the program's threads have written."""
    tl.inline_asm_elementwise(
        """{
        .reg .pred chosen;
        .reg .u32 thread;
        mov.u32 thread, %tid.x;
        setp.eq.u32 chosen, thread, $3;
        @chosen st.release.sys.global.u32 [$1], $2;
        mov.u32 $0, 0;
        }""", "=r,l,r,r", [address, turn, thread], dtype=tl.int32, is_pure=False, pack=1,
    )  # fmt: skip


@triton.jit
def _await_flag(address, turn, thread: tl.constexpr):
    """Thread `thread` waits until what is there has come to `turn`; turns are compared as they wrap around."""
    tl.inline_asm_elementwise(
        """{
        .reg .pred others, behind;
        .reg .u32 thread;
        .reg .s32 found;
        mov.u32 thread, %tid.x;
        setp.ne.u32 others, thread, $3;
        @others bra done;
        again:
        ld.acquire.sys.global.s32 found, [$1];
        sub.s32 found, found, $2;
        setp.lt.s32 behind, found, 0;
        @behind bra again;
        done:
        mov.u32 $0, 0;
        }""", "=r,l,r,r", [address, turn, thread], dtype=tl.int32, is_pure=False, pack=1,
    )  # fmt: skip
