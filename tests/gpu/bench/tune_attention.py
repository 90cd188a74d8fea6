"""`python -m tests.gpu.bench.tune_attention`: times tiles for the tables of `kernels/paged_attention/variants.py`."""

from __future__ import annotations

import functools
import itertools

import torch

from kernels.paged_attention import triton, variants
from kernels.paged_attention.cases import Shape, batch
from tests.gpu.bench.ceilings import median_s

PREFILL = [
    variants.Tile(rows, columns, warps, stages)
    for rows, columns, warps, stages in itertools.product((64, 128, 256), (64, 128), (4, 8), (2, 3, 4))
    if (warps == 8 or rows < 256) and (rows > 64 or warps == 4)
]
DECODE = [
    variants.Tile(0, columns, warps, stages)
    for columns, warps, stages in itertools.product((32, 64, 128), (2, 4, 8), (2, 3, 4, 5))
]


def main() -> None:
    device = torch.device("cuda")
    for dim, fp8 in ((128, False), (128, True), (64, False), (256, False)):
        cache_dtype = torch.float8_e4m3fn if fp8 else torch.bfloat16
        _try(dim, fp8, "prefill", PREFILL, Shape((8192,) * 2, (8192,) * 2, 32, 8, dim), cache_dtype, device)
        _try(dim, fp8, "decode", DECODE, Shape((1,) * 64, (4096,) * 64, 32, 8, dim), cache_dtype, device)


def _try(dim, fp8, kind, tiles, shape, cache_dtype, device) -> None:
    made = batch(shape, torch.bfloat16, cache_dtype, device)
    table = variants.PREFILL_TILES if kind == "prefill" else variants.DECODE_TILES
    memory = variants._MEMORY[triton.architecture()]
    before, found = table[memory][dim], []
    for tile in tiles:
        table[memory][dim] = tile
        triton._prefill, triton._decode = (functools.cache(f) for f in (variants.prefill, variants.decode))
        try:
            time = median_s(lambda: triton.paged_attention(*made, dim**-0.5), 60)
        except Exception as problem:  # noqa: BLE001 - a tile that does not fit is told, and the next one tried
            print(f"  {tile}: {type(problem).__name__} {str(problem)[:80]}")
            continue
        found.append((time, tile))
    table[memory][dim] = before
    work = sum(4 * 32 * dim * n * (n + 1) / 2 for n in shape.queries)
    if kind == "decode":
        work = 2 * sum(shape.contexts) * 8 * dim * cache_dtype.itemsize
    for time, tile in sorted(found)[:6]:
        print(
            f"{kind} head_dim={dim} {'fp8' if fp8 else 'bf16'} cache: {tile} {time * 1e6:.0f} us, {work / time / 1e12:.2f} T/s"
        )


if __name__ == "__main__":
    main()
