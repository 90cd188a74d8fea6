"""Decodes in CUDA graphs: Triton's, whose grid covers the longest context that the graph is for, against FlashInfer's,
which the host must plan before each replay. Microseconds a layer, and of a plan.

usage: INGOT_FLASHINFER_CAST=.gpu-cast python -m tests.gpu.bench.captured_decodes
"""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from appliance.checkpoint.memory.graph_shapes import context_sizes
from kernels import flashinfer
from kernels.cases import TOLERANCES, error
from kernels.cast.architectures import architecture_named
from kernels.paged_attention import triton
from kernels.paged_attention.cases import Batch, Shape, batch

DEVICE, DTYPE = torch.device("cuda"), torch.bfloat16
LAYERS, DIM, BLOCK = 8, 128, 16
CONTEXTS = context_sizes(16_384)
# Query and key-value heads, sequences, and the longest of their contexts.
SIZES = (
    (32, 8, 1, 600), (32, 8, 8, 600), (32, 8, 16, 600), (32, 8, 64, 400), (32, 8, 64, 600), (32, 8, 64, 3000),
    (32, 8, 256, 600), (32, 8, 8, 8000), (32, 4, 64, 600), (32, 4, 256, 600),
)  # fmt: skip


class Planned:
    """FlashInfer's decode with buffers that a graph may hold."""

    def __init__(self, heads: int, kv_heads: int, sequences: int, blocks: int) -> None:
        self._sizes = (heads, kv_heads, DIM, BLOCK)

        def numbers(count: int) -> Tensor:
            return torch.ones(count, dtype=torch.int32, device=DEVICE)

        self.wrapper: Any = flashinfer.library().BatchDecodeWithPagedKVCacheWrapper(
            torch.zeros(256 << 20, dtype=torch.uint8, device=DEVICE), "NHD", use_cuda_graph=True, use_tensor_cores=True,
            paged_kv_indptr_buffer=numbers(sequences + 1), paged_kv_indices_buffer=numbers(sequences * blocks),
            paged_kv_last_page_len_buffer=numbers(sequences), backend="fa2",
        )  # fmt: skip

    def plan(self, made: Batch) -> float:
        """Seconds that the host takes for it, with the pages laid out before."""
        lens = torch.tensor(made.metadata.context_lens, dtype=torch.int32)
        counts = (lens + BLOCK - 1) // BLOCK
        starts = torch.cat((torch.zeros(1, dtype=torch.int32), counts.cumsum(0).to(torch.int32)))
        pages = torch.cat([row[:count] for row, count in zip(made.metadata.block_tables, counts, strict=True)])
        torch.cuda.synchronize()
        began = time.perf_counter()
        self.wrapper.plan(
            starts, pages, (lens - 1) % BLOCK + 1, *self._sizes, q_data_type=DTYPE, kv_data_type=DTYPE,
            sm_scale=DIM**-0.5,
        )  # fmt: skip
        return time.perf_counter() - began


def main() -> None:
    flashinfer.seal(
        Path(os.environ["INGOT_FLASHINFER_CAST"]),
        architecture_named("sm_{}{}".format(*torch.cuda.get_device_capability())),
    )
    print(f"{'heads':>8} {'sequences x context':>20} {'triton':>8} {'flashinfer':>11} {'its plan':>9}")
    for heads, kv_heads, sequences, longest in SIZES:
        contexts = tuple(longest - 7 * place % (longest // 4) for place in range(sequences))
        shape = Shape((1,) * sequences, contexts, heads, kv_heads, DIM, BLOCK)
        made = batch(shape, DTYPE, DTYPE, DEVICE)
        made = made._replace(query=made.query.contiguous())
        held = bounded(made)  # as long as the graph
        ours = graph_of(partial(triton.paged_attention, *held, DIM**-0.5))
        planned = Planned(heads, kv_heads, sequences, -(-longest // BLOCK))
        planned.plan(made)
        out = torch.empty_like(made.query)
        theirs = graph_of(partial(planned.wrapper.run, made.query, tuple(made[1:3]), out=out))
        # Planned anew, the graph computes other lengths than it was captured with.
        shorter = with_contexts(made, [max(length - 150, 1) for length in contexts])
        planned.plan(shorter)
        theirs.replay()
        expected = partial(triton.paged_attention, *shorter, DIM**-0.5)()
        assert error(out, expected) <= TOLERANCES[DTYPE]
        host = statistics.median(planned.plan(made) for _ in range(30))
        print(
            f"{heads:>5}/{kv_heads:<2} {f'{sequences} x {longest}':>20} {microseconds(ours):>8.1f} "
            f"{microseconds(theirs):>11.1f} {host * 1e6:>9.0f}",
            flush=True,
        )


def bounded(made: Batch) -> Batch:
    """As a graph of the smallest context that holds it has it."""
    metadata = made.metadata
    longest = next(size for size in CONTEXTS if size >= max(metadata.context_lens))
    tables = metadata.block_tables.new_zeros(len(metadata.seq_lens), longest // BLOCK)
    tables[:, : metadata.block_tables.shape[1]] = metadata.block_tables
    lens = [longest] * len(metadata.seq_lens)
    return made._replace(metadata=replace(metadata, context_lens=lens, block_tables=tables, bounds=True))


def with_contexts(made: Batch, contexts: list[int]) -> Batch:
    lens = torch.tensor(contexts, dtype=torch.int32, device=DEVICE)
    return made._replace(metadata=replace(made.metadata, context_lens=contexts, seq_lens=lens))


def graph_of(call: Callable[[], object]) -> torch.cuda.CUDAGraph:
    for _ in range(3):
        call()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(LAYERS):
            call()
    return graph


def microseconds(graph: torch.cuda.CUDAGraph) -> float:
    """Of one call."""
    times = []
    for _ in range(20):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        graph.replay()
        end.record()
        torch.cuda.synchronize()
        times.append(begin.elapsed_time(end) * 1e3 / LAYERS)
    return statistics.median(times)


if __name__ == "__main__":
    main()
