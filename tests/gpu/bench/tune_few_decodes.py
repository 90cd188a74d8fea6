"""`python -m tests.gpu.bench.tune_few_decodes`: attention of few decodes by the variants for many programs and for
few, for `FEW_PROGRAMS` in `kernels/paged_attention/variants.py`. Microseconds a layer.

In a CUDA graph, each layer with a cache of its own, as in a decode.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from functools import partial

import torch

from kernels.launch import architecture, cdiv
from kernels.paged_attention import SPLIT, triton, variants
from kernels.paged_attention.cases import Batch, Shape, batch
from tests.gpu.bench.captured_decodes import LAYERS, bounded, graph_of, microseconds
from tests.gpu.bench.precompile import precompile

DEVICE, DTYPE = torch.device("cuda"), torch.bfloat16
# Query and key-value heads, head size, sequences, and the longest of their contexts.
SIZES = [
    (heads, kv_heads, dim, sequences, longest)
    for heads, kv_heads, dim in ((32, 8, 128), (32, 4, 64))
    for sequences, longest in ((1, 600), (1, 8300), (2, 8300), (4, 8300), (8, 600), (16, 600), (24, 600), (32, 600))
]


def main() -> None:
    arch = architecture()
    precompile(
        variants.decode(arch, "bfloat16", dim, False, False, 16, few) for dim in (64, 128) for few in (False, True)
    )
    print(f"{'heads':>10} {'sequences x context':>20} {'programs':>9} {'as many':>8} {'as few':>7}")
    before = variants.FEW_PROGRAMS
    for heads, kv_heads, dim, sequences, longest in SIZES:
        contexts = tuple(longest - 7 * place % (longest // 4) for place in range(sequences))
        shape = Shape((1,) * sequences, contexts, heads, kv_heads, dim)
        layers = [bounded(batch(shape, DTYPE, DTYPE, DEVICE)) for _ in range(LAYERS)]
        programs = kv_heads * cdiv(layers[0].metadata.context_lens[0], SPLIT) * sequences
        times = []
        for variants.FEW_PROGRAMS in (0, programs):
            times.append(microseconds(graph_of(partial(attend, itertools.cycle(layers), dim))))
        named = f"{heads}/{kv_heads} {dim}"
        print(
            f"{named:>10} {f'{sequences} x {longest}':>20} {programs:>9} {times[0]:>8.1f} {times[1]:>7.1f}", flush=True
        )
    variants.FEW_PROGRAMS = before


def attend(layers: Iterator[Batch], dim: int) -> None:
    triton.paged_attention(*next(layers), dim**-0.5)


if __name__ == "__main__":
    main()
