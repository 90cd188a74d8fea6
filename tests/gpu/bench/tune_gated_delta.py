"""`python -m tests.gpu.bench.tune_gated_delta`: times tiles for `kernels/delta_rule/variants.py`, at a prompt of 8,192
tokens. The two kernels of a prefill are timed apart."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

from kernels.delta_rule import triton as delta_rule
from kernels.delta_rule import variants
from kernels.delta_rule.variants import Tile
from kernels.launch import architecture
from kernels.variants import Variant
from tests.gpu.bench.ceilings import median_s
from tests.gpu.bench.gated_delta import DIM, DTYPE, PROMPT, batch
from tests.gpu.bench.precompile import precompile

NAME = str(DTYPE).removeprefix("torch.")
PREPARE = [Tile(columns, warps) for columns in (32, 64, 128) for warps in (2, 4, 8)]
SCAN = [Tile(columns, warps, stages) for columns in (16, 32, 64) for warps in (2, 4, 8) for stages in (2, 3, 4)]


def main() -> None:
    arch = architecture()
    made = batch(torch.device("cuda"), (PROMPT,))
    for name, tiles, variant, choose in (
        ("prepare_kernel", PREPARE, lambda: variants.prepare(NAME, DIM), _prepare_by),
        ("scan_kernel", SCAN, lambda: variants.scan(arch, NAME, DIM), _scan_by),
    ):
        now = _all(tiles, variant, choose)
        precompile(now.values())
        times = []
        for tile in tiles:
            with choose(tile), _alone(name):
                try:
                    call = median_s(
                        lambda: delta_rule.delta_rule(*made.given, made.state, made.rows, made.metadata), 60
                    )
                except Exception as problem:  # noqa: BLE001 - a tile that does not fit is no result
                    print(f"{name} {tile}: {type(problem).__name__}", flush=True)
                    continue
            times.append((call, tile))
        chosen = variant()
        for time, tile in sorted(times):
            print(f"{name} {tile} {time * 1e6:.1f} us{' (now)' if now[tile] == chosen else ''}", flush=True)


def _all(tiles: list[Tile], variant: Callable[[], Variant], choose: Callable[[Tile], Any]) -> dict[Tile, Variant]:
    found = {}
    for tile in tiles:
        with choose(tile):
            found[tile] = variant()
    return found


@contextmanager
def _prepare_by(tile: Tile) -> Iterator[None]:
    """Meanwhile every chunk is prepared by this tile."""
    before = variants.PREPARE_TILE
    _put("PREPARE_TILE", tile)
    try:
        yield
    finally:
        _put("PREPARE_TILE", before)


@contextmanager
def _scan_by(tile: Tile) -> Iterator[None]:
    before = dict(variants.SCAN_TILES)
    _put("SCAN_TILES", dict.fromkeys(before, tile))
    try:
        yield
    finally:
        _put("SCAN_TILES", before)


def _put(table: str, value: Any) -> None:
    setattr(variants, table, value)
    for cached in (delta_rule._prepare, delta_rule._scan):
        cached.cache_clear()


@contextmanager
def _alone(name: str) -> Iterator[None]:
    """Meanwhile a prefill launches only this kernel."""
    op: Any = delta_rule
    launch = op.launch

    def only(kernel: Any, *arguments: Any) -> None:
        if kernel.fn.__name__ == name:
            launch(kernel, *arguments)

    op.launch = only
    try:
        yield
    finally:
        op.launch = launch


if __name__ == "__main__":
    main()
