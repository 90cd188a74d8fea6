"""What products share that are split along their inner dimension, each tile's parts being summed by the last of its
programs."""

from __future__ import annotations

import functools

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels.gated_activation.triton import activated, gate_and_up

# Tiles of a product that is split, at most: there are fewer than processors, or few times as many.
COUNTERS = 1 << 14


@functools.cache
def processors() -> int:
    return torch.cuda.get_device_properties().multi_processor_count if torch.cuda.is_available() else 132


@functools.cache
def arrived(device: torch.device) -> Tensor:
    """Zeros, to which each tile's last program returns its own: kernels of one stream can share them."""
    return torch.zeros(COUNTERS, dtype=torch.int32, device=device)


@triton.jit
def finish_tile(
    total,  # [TOKENS, OUTPUTS] float32
    added,  # [1, OUTPUTS] float32: the bias
    parts_ptr,  # [splits, tiles, tokens, OUTPUTS] float32, or anything where SPLIT is false
    arrived_ptr,  # [tiles], zero, or anything where SPLIT is false
    out_ptr,  # [tokens, outputs], or with ACTIVATION [tokens, outputs / 2]
    tile,
    tokens,
    outputs,
    splits,
    limit,
    TOKENS: tl.constexpr,
    OUTPUTS: tl.constexpr,
    SPLIT: tl.constexpr,
    ACTIVATION: tl.constexpr,
):
    """Write a tile's sums; of a split product the part of this program, and if it is the tile's last, the sums of all
    parts in order."""
    if not SPLIT:
        _store_tile(total + added, out_ptr, tile, tokens, outputs, limit, TOKENS, OUTPUTS, ACTIVATION)
    else:
        token = tl.arange(0, TOKENS)
        inside = (token < tokens)[:, None]
        place = (tile * tokens + token[:, None]) * OUTPUTS + tl.arange(0, OUTPUTS)[None, :]
        size = tl.num_programs(0) * tokens * OUTPUTS
        tl.store(parts_ptr + tl.program_id(1) * size + place, total, mask=inside)
        tl.debug_barrier()  # every thread has written its part
        if tl.atomic_add(arrived_ptr + tile, 1, sem="acq_rel") == splits - 1:
            total = tl.zeros(total.shape, tl.float32) + added
            for split in range(splits):
                # Past the L1 cache, which does not see what other programs write.
                total += tl.load(parts_ptr + split * size + place, mask=inside, other=0.0, cache_modifier=".cg")
            _store_tile(total, out_ptr, tile, tokens, outputs, limit, TOKENS, OUTPUTS, ACTIVATION)
            tl.store(arrived_ptr + tile, 0)


@triton.jit
def _store_tile(
    total, out_ptr, tile, tokens, outputs, limit, TOKENS: tl.constexpr, OUTPUTS: tl.constexpr, ACTIVATION: tl.constexpr
):
    """Write a tile's sums, or what the activation makes of those of gate and up."""
    GATED: tl.constexpr = ACTIVATION != ""
    WIDTH: tl.constexpr = OUTPUTS // 2 if GATED else OUTPUTS
    columns = outputs // 2 if GATED else outputs
    if GATED:
        gate, up = gate_and_up(total, TOKENS, WIDTH)
        total = activated(gate, up, limit, ACTIVATION, LIMITED=True)
    token, column = tl.arange(0, TOKENS)[:, None], (tile * WIDTH + tl.arange(0, WIDTH))[None, :]
    inside = (token < tokens) & (column < columns)
    tl.store(out_ptr + token * columns + column, total.to(out_ptr.dtype.element_ty), mask=inside)
