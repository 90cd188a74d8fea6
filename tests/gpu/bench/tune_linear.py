"""`python -m tests.gpu.bench.tune_linear`: times tiles of linear for few tokens, for `variants.py`.

Products follow each other in a CUDA graph, each with weights of its own, as in a decode.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

import torch
from torch import Tensor

from kernels.linear import reference, variants
from kernels.linear import triton as linear
from kernels.linear.variants import Tile
from kernels.split_products import processors
from tests.gpu.bench.ceilings import copy_bandwidth
from tests.gpu.bench.precompile import precompile

SHOWN = 5  # of the best
SHAPES = ((6144, 4096), (4096, 4096), (24576, 4096), (4096, 12288), (151936, 4096), (2560, 2048), (11264, 2048))
TILES = [
    Tile(tokens, outputs, inner, 4, stages, weight_first)
    for tokens in (16, 32, 64, 128)
    for outputs in (32, 64, 128)
    for inner in (64, 128, 256)
    for stages in (3, 4, 5, 6, 8)
    for weight_first in (False, True)
    if (outputs >= 64 or not weight_first)
    and 40 << 10 <= outputs * inner * 2 * stages <= 132 << 10
    and (outputs + tokens) * inner * 2 * stages <= 220 << 10
]
BYTES = 1 << 30  # of the weights of one graph, so that nothing is left in the L2 cache


def main() -> None:
    device = torch.device("cuda")
    copy = copy_bandwidth(device)
    precompile(variants.of("bfloat16", tile, split) for tile in TILES for split in (False, True))
    for outputs, inner in SHAPES:
        size = 2 * outputs * inner
        weights = [
            torch.randn(outputs, inner, device=device, dtype=torch.bfloat16) for _ in range(max(BYTES // size, 2))
        ]
        for tokens in (1, 16, 32, 64, 128):
            x = torch.randn(tokens, inner, device=device, dtype=torch.bfloat16)
            cublas = _seconds(partial(reference.linear, x), weights)
            print(f"{tokens} x {inner} x {outputs}: copy {size / copy * 1e6:.1f} us, cublas {cublas * 1e6:.1f} us")
            times = sorted(_times(x, weights), key=lambda found: found[0])
            for time, tile, splits in times[:SHOWN]:
                print(f"  {time * 1e6:6.1f} us, {size / time / copy:4.0%} of copy: {tile} in {splits}", flush=True)
        del weights


def _times(x: Tensor, weights: list[Tensor]) -> Iterator[tuple[float, Tile, int]]:
    """Of each tile for so many tokens, in as many parts as `variants` says."""
    tokens, (outputs, inner) = len(x), weights[0].shape
    fitting = [tile for tile in TILES if tokens <= tile.tokens < 2 * tokens or tile.tokens == 16 >= tokens]
    before = variants.tile_of, variants.MOST_TOKENS
    for tile in fitting:
        variants.tile_of, variants.MOST_TOKENS = lambda *_, tile=tile: tile, 128
        linear._plan.cache_clear()
        try:
            yield (
                _seconds(lambda weight: linear.linear(x, weight), weights),
                tile,
                variants.splits_of(tile, outputs, inner, processors()),
            )
        except Exception as problem:  # noqa: BLE001 - a tile that cannot run is a result, too
            print(f"  {tile}: {type(problem).__name__}: {str(problem)[:100]}")
    variants.tile_of, variants.MOST_TOKENS = before
    linear._plan.cache_clear()


def _seconds(call: Callable[[Tensor], object], weights: list[Tensor]) -> float:
    """Of one product, in a graph of one with each of `weights`."""
    call(weights[0])
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for weight in weights:
            call(weight)
    graph.replay()
    times = []
    for _ in range(7):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        graph.replay()
        end.record()
        end.synchronize()
        times.append(start.elapsed_time(end) / 1e3 / len(weights))
    return sorted(times)[len(times) // 2]


if __name__ == "__main__":
    main()
