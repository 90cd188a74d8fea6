"""`python -m tests.gpu.bench.tune_attention [HEAD_SIZE ...]`: times tiles for the tables of
`kernels/paged_attention/variants.py`."""

from __future__ import annotations

import itertools
import sys
from collections.abc import Callable, Iterator
from typing import NamedTuple

import torch

from kernels.launch import architecture
from kernels.paged_attention import triton, variants
from kernels.paged_attention.cases import Shape, batch
from kernels.variants import Variant
from tests.gpu.bench.ceilings import median_s
from tests.gpu.bench.precompile import precompile

PREFILL = [
    variants.Tile(*tile)
    for tile in ((128, 128, 8, 2), (128, 64, 8, 2), (128, 64, 8, 3), (128, 64, 8, 4), (128, 64, 4, 3), (64, 64, 4, 3),
                 (64, 128, 4, 2), (128, 128, 8, 1), (256, 64, 8, 2), (128, 32, 8, 4), (64, 64, 4, 4), (128, 128, 4, 2))
]  # fmt: skip
GATHERED = [
    variants.Tile(*tile)
    for tile in ((128, 128, 8, 2), (128, 128, 8, 3), (128, 64, 8, 3), (128, 64, 4, 3), (64, 128, 4, 2), (64, 64, 4, 3),
                 (128, 64, 8, 4), (128, 64, 4, 2), (64, 128, 4, 3), (256, 64, 8, 2), (128, 128, 4, 2))
]  # fmt: skip
DECODE = [variants.Tile(0, *tile) for tile in itertools.product((32, 64, 128), (2, 4), (2, 3, 4, 5))]
# Head size 256 fills the registers: few tiles that spill little, with the first one that was in the table.
PREFILL_256 = [
    variants.Tile(*tile)
    for tile in ((128, 64, 8, 3), (128, 32, 8, 3), (128, 32, 8, 2), (64, 64, 8, 3), (64, 64, 8, 2), (64, 32, 8, 3),
                 (64, 16, 8, 3), (32, 32, 4, 3))
]  # fmt: skip
DECODE_256 = [variants.Tile(0, *tile) for tile in ((32, 4, 3), (32, 8, 3), (64, 4, 2), (64, 8, 2), (64, 4, 3))]
BF16, FP8 = torch.bfloat16, torch.float8_e4m3fn


class Trial(NamedTuple):
    """Tiles to be timed for one entry of a table. `work` is bytes of a decode, operations of a prefill."""

    shape: Shape
    tiles: list[variants.Tile]
    table: dict[int, dict[int, variants.Tile]]
    variant: Callable[[], Variant]
    cache_dtype: torch.dtype
    work: float


def trials(dim: int) -> Iterator[Trial]:
    large = dim == 256
    long = Shape((8192,) * 2, (8192,) * 2, 32, 8, dim)
    yield Trial(long, GATHERED, variants.GATHERED_TILES, _prefill(dim, False, gathered=True), BF16,
                2 * 4 * 32 * dim * 8192 * 8193 / 2)  # fmt: skip
    # So few tokens of each that their pages are not copied together.
    short = Shape((64,) * 32, (4096,) * 32, 32, 8, dim)
    for fp8, table in ((False, variants.PREFILL_TILES), (True, variants.FP8_PREFILL_TILES)):
        work = 32 * 4 * 32 * dim * 64 * (4096 - 32)
        yield Trial(short, PREFILL_256 if large else PREFILL, table, _prefill(dim, fp8), FP8 if fp8 else BF16, work)
    decode = Shape((1,) * 64, (4096,) * 64, 32, 8, dim)
    for fp8, table in ((False, variants.DECODE_TILES), (True, variants.FP8_DECODE_TILES)):
        dtype = FP8 if fp8 else BF16
        work = 2 * 64 * 4096 * 8 * dim * dtype.itemsize
        yield Trial(decode, DECODE_256 if large else DECODE, table, _decode(dim, fp8), dtype, work)


def main() -> None:
    device = torch.device("cuda")
    for dim in [int(word) for word in sys.argv[1:]] or [128, 64, 256]:
        for trial in trials(dim):
            _try(trial, device)


def _prefill(dim: int, fp8: bool, *, gathered: bool = False) -> Callable[[], Variant]:
    return lambda: variants.prefill(architecture(), "bfloat16", dim, fp8, False, gathered=gathered)


def _decode(dim: int, fp8: bool) -> Callable[[], Variant]:
    return lambda: variants.decode(architecture(), "bfloat16", dim, fp8, False, 16)


def _try(trial: Trial, device: torch.device) -> None:
    shape, dim = trial.shape, trial.shape.head_dim
    row = trial.table[variants.memory_of(architecture())]
    before, wanted, found = row[dim], [], []
    for tile in trial.tiles:
        row[dim] = tile
        wanted.append(trial.variant())
    precompile(wanted)
    made = batch(shape, BF16, trial.cache_dtype, device)
    for tile in trial.tiles:
        row[dim] = tile
        triton._prefill.cache_clear()
        triton._decode.cache_clear()
        try:
            time = median_s(lambda: triton.paged_attention(*made, dim**-0.5), 60)
        except Exception as problem:  # noqa: BLE001 - a tile that does not fit is reported, and the next one tried
            print(f"  {tile}: {type(problem).__name__} {str(problem)[:80]}")
            continue
        found.append((time, tile))
    row[dim] = before
    triton._prefill.cache_clear()
    triton._decode.cache_clear()
    print(
        f"{shape.queries[0]} tokens, {shape.contexts[0]} of context, head_dim={dim} {trial.cache_dtype}, now {before}"
    )
    for time, tile in sorted(found)[:8]:
        print(f"    {tile} {time * 1e6:.0f} us, {trial.work / time / 1e12:.2f} T/s", flush=True)


if __name__ == "__main__":
    main()
