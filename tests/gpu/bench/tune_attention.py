"""`python -m tests.gpu.bench.tune_attention`: times tiles for the tables of `kernels/paged_attention/variants.py`."""

from __future__ import annotations

import itertools
from collections.abc import Callable

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


def main() -> None:
    device = torch.device("cuda")
    for dim, fp8 in ((128, False), (64, False), (256, False), (128, True)):
        prefill, decode = Shape((8192,) * 2, (8192,) * 2, 32, 8, dim), Shape((1,) * 64, (4096,) * 64, 32, 8, dim)
        if not fp8:
            work = 2 * 4 * 32 * dim * 8192 * 8193 / 2
            _try(prefill, GATHERED, variants.GATHERED_TILES, _prefill(dim, fp8), torch.bfloat16, work, device)
        cache_dtype = torch.float8_e4m3fn if fp8 else torch.bfloat16
        work = 2 * 64 * 4096 * 8 * dim * cache_dtype.itemsize
        _try(
            decode,
            DECODE,
            variants.FP8_DECODE_TILES if fp8 else variants.DECODE_TILES,
            _decode(dim, fp8),
            cache_dtype,
            work,
            device,
        )


def _prefill(dim: int, fp8: bool) -> Callable[[], Variant]:
    return lambda: variants.prefill(architecture(), "bfloat16", dim, fp8, False, gathered=True)


def _decode(dim: int, fp8: bool) -> Callable[[], Variant]:
    return lambda: variants.decode(architecture(), "bfloat16", dim, fp8, False, 16)


def _try(
    shape: Shape,
    tiles: list[variants.Tile],
    table: dict[int, dict[int, variants.Tile]],
    variant: Callable[[], Variant],
    cache_dtype: torch.dtype,
    work: float,
    device: torch.device,
) -> None:
    row, dim = table[variants.memory_of(architecture())], shape.head_dim
    before, wanted, found = row[dim], [], []
    for tile in tiles:
        row[dim] = tile
        wanted.append(variant())
    precompile(wanted)
    made = batch(shape, torch.bfloat16, cache_dtype, device)
    for tile in tiles:
        row[dim] = tile
        triton._prefill.cache_clear()
        triton._decode.cache_clear()
        try:
            time = median_s(lambda: triton.paged_attention(*made, dim**-0.5), 60)
        except Exception as problem:  # noqa: BLE001 - a tile that does not fit is told, and the next one tried
            print(f"  {tile}: {type(problem).__name__} {str(problem)[:80]}")
            continue
        found.append((time, tile))
    row[dim] = before
    for time, tile in sorted(found)[:6]:
        rate = work / time / 1e12
        print(f"{shape.queries[0]} tokens, head_dim={dim} {cache_dtype}: {tile} {time * 1e6:.0f} us, {rate:.2f} T/s")


if __name__ == "__main__":
    main()
