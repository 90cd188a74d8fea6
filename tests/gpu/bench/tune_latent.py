"""`python -m tests.gpu.bench.tune_latent [HEADS ...]`: times the tiles and parts of latent attention's decodes, for
`kernels/mla_attention`, at DeepSeek V3's shape; and with 0 heads the tiles of its prefills."""

from __future__ import annotations

import itertools
import sys
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any
from unittest import mock

import torch

from kernels.launch import architecture
from kernels.mla_attention import SHAPES, triton, variants
from kernels.mla_attention.cases import Batch, Shape, batch
from kernels.paged_attention.variants import Tile
from kernels.variants import Variant
from tests.gpu.bench.ceilings import copy_bandwidth, median_s
from tests.gpu.bench.precompile import precompile

DEEPSEEK = SHAPES[0]
DECODE = {
    16: ((16, 32, 4, 3), (16, 32, 4, 2), (16, 32, 4, 4), (16, 64, 4, 2), (16, 64, 8, 3), (16, 32, 8, 3)),
    32: ((32, 32, 8, 3), (32, 32, 4, 3), (32, 64, 8, 2), (32, 64, 8, 3), (32, 32, 8, 4), (16, 32, 4, 3)),
    128: ((64, 64, 8, 2), (64, 32, 8, 3), (64, 32, 8, 2), (64, 64, 4, 2), (32, 64, 8, 3), (32, 32, 8, 3)),
}
SPLITS = (256, 512, 1024, 2048, 4096)
LOADS = ((64, 4096), (4, 32768), (1, 8192))  # sequences, tokens of context
PREFILL = (
    (128, 64, 8, 2), (128, 64, 8, 3), (128, 128, 8, 2), (128, 128, 8, 1), (64, 64, 4, 2), (64, 128, 4, 2),
)  # fmt: skip


def main() -> None:
    device = torch.device("cuda")
    copy = copy_bandwidth(device)
    print(f"copy {copy / 1e12:.2f} TB/s")
    for heads in [int(word) for word in sys.argv[1:]] or [128, 16, 32, 0]:
        if heads:
            _decodes(heads, copy, device)
        else:
            _prefills(device)


def _decodes(heads: int, copy: float, device: torch.device) -> None:
    tiles = [Tile(*tile) for tile in DECODE[heads]]
    precompile([variants.decode("bfloat16", DEEPSEEK, tile) for tile in tiles])
    for seqs, context in LOADS:
        made = batch(Shape((1,) * seqs, (context,) * seqs, heads, DEEPSEEK), torch.bfloat16, device)
        bytes_read = made.kv_b.nbytes + 2 * seqs * context * (DEEPSEEK.rank + DEEPSEEK.rope)
        print(f"{heads} heads, {seqs} x {context}, now {variants.decode_tile(architecture(), heads)}")
        own = [None] if heads > 32 and architecture() == 90 else []  # the kernel that has no tiles to choose from
        trials = list(itertools.product([*own, *tiles], SPLITS))
        _report(trials, partial(_decode_time, made), partial(_share_of_copy, bytes_read, copy))


def _decode_time(made: Batch, trial: tuple[Tile | None, int]) -> float:
    tile, part = trial
    tiles: dict[str, Any] = {"_tile": lambda *_: tile, "_divides_warps": lambda *_: False} if tile else {}
    with mock.patch.multiple(triton, split=lambda _: part, LONGER_ON_HOPPER=1, **tiles):
        return median_s(lambda: triton.mla_attention(*made, scale=0.07), 30)


def _share_of_copy(bytes_read: float, copy: float, time: float) -> str:
    return f"{bytes_read / time / copy:.0%} of copy bandwidth"


def _prefills(device: torch.device) -> None:
    table = variants.PREFILL_TILES[variants.memory_of(architecture())]
    before = table[DEEPSEEK.value]

    def variant(tile: Tile) -> Variant:
        table[DEEPSEEK.value] = tile
        triton._prefill.cache_clear()
        return variants.prefill(architecture(), "bfloat16", DEEPSEEK)

    tiles = [Tile(*tile) for tile in PREFILL]
    precompile([variant(tile) for tile in tiles])
    made = batch(Shape((8192,), (8192,), 128, DEEPSEEK), torch.bfloat16, device)
    flops = 2 * 128 * 8192 * 8193 / 2 * (DEEPSEEK.nope + DEEPSEEK.rope + DEEPSEEK.value)

    def timed(tile: Tile) -> float:
        variant(tile)
        return median_s(lambda: triton.mla_attention(*made, scale=0.07), 100)

    print(f"prefill of 8192, now {before}")
    _report(tiles, timed, lambda time: f"{flops / time / 1e12:.0f} TFLOP/s")
    variant(before)


def _report(trials: Sequence[Any], timed: Callable[[Any], float], speed: Callable[[float], str]) -> None:
    found = []
    for trial in trials:
        try:
            found.append((timed(trial), trial))
        except Exception as problem:  # noqa: BLE001 - a tile that does not fit is reported, and the next one tried
            print(f"  {trial}: {type(problem).__name__} {str(problem)[:80]}")
    for time, trial in sorted(found, key=lambda each: each[0])[:8]:
        print(f"    {trial} {time * 1e6:.0f} us, {speed(time)}", flush=True)


if __name__ == "__main__":
    main()
