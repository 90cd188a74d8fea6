"""Sums of the GPUs of this machine, in CUDA graphs: Triton's, through memory that they share, against NCCL's.
Microseconds a sum; first it is proven that all GPUs find the sum in float32, rounded.

usage: python -m tests.gpu.bench.all_reduce [RANKS]
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path

import torch
from torch import Tensor
from torch.multiprocessing.spawn import spawn

from appliance.engine.peer_memory import open_shared
from appliance.models.collectives import Distributed
from kernels.all_reduce.triton import all_reduce
from kernels.cases import randn

# Tokens, and the elements of each.
SIZES = ((1, 2048), (1, 4096), (8, 4096), (64, 2048), (64, 4096), (256, 4096), (1024, 4096), (2048, 4096))
SUMS, REPLAYS, ROUNDS = 20, 20, 5


def main(ranks: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        spawn(_measure, (ranks, Path(folder)), nprocs=ranks)


def _measure(rank: int, ranks: int, folder: Path) -> None:
    device = torch.device("cuda", rank)
    torch.cuda.set_device(device)
    torch.distributed.init_process_group(
        "nccl", init_method=f"file://{folder}/ranks", rank=rank, world_size=ranks, device_id=device
    )
    group = Distributed()
    shared = open_shared(group, device, print)
    assert shared is not None, "the GPUs cannot reach each other's memory"
    if rank == 0:
        print(f"{'tokens x elements':>18} {'triton':>8} {'nccl':>8}")
    for tokens, size in SIZES:
        x = torch.empty(tokens, size, dtype=torch.bfloat16, device=device)
        if not shared.holds(x):
            continue
        parts = [randn((tokens, size), torch.bfloat16, device, seed=each) for each in range(ranks)]
        expected = torch.stack(parts).float().sum(0).to(torch.bfloat16)
        for _ in range(5):  # with both halves, and with the flags of turns before
            assert torch.equal(all_reduce(parts[rank].clone(), shared), expected), (tokens, size)
        found = (
            _microseconds(x, partial(all_reduce, shared=shared), group),
            _microseconds(x, torch.distributed.all_reduce, group),
        )
        if rank == 0:
            print(f"{f'{tokens} x {size}':>18} {found[0]:8.1f} {found[1]:8.1f}", flush=True)
    group.wait_for_all(device)


def _microseconds(x: Tensor, add: Callable[[Tensor], object], group: Distributed) -> float:
    """Of one sum, in the fastest round."""
    x.zero_()
    add(x)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(SUMS):
            add(x)
    best = float("inf")
    for _ in range(ROUNDS):
        began, ended = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        graph.replay()  # together
        began.record()
        for _ in range(REPLAYS):
            graph.replay()
        ended.record()
        ended.synchronize()
        best = min(best, began.elapsed_time(ended) * 1e3 / SUMS / REPLAYS)
        group.wait_for_all(x.device)
    return best


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else torch.cuda.device_count())
