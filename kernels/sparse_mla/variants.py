"""The closed set of sparse latent attention's kernels: tiles and the joining of parts are those of `mla_attention`, but
for the widest: addresses of chosen tokens take registers. Not measured yet: tests/gpu/bench/tune_sparse.py."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from kernels.mla_attention import LatentShape
from kernels.mla_attention import variants as dense
from kernels.paged_attention.variants import Tile
from kernels.selection import Context
from kernels.variants import TRITON_TYPES, Variant, variant

WIDEST: Final = Tile(64, 32, 8, 2)
WIDEST_ON_SM10X: Final = Tile(64, 16, 8, 3)


def variants(arch: int, model: Context | None = None) -> Iterator[Variant]:
    yield from dict.fromkeys(_variants(arch, model))


def _variants(arch: int, model: Context | None) -> Iterator[Variant]:
    for dtype, shape in dense.latents(model):
        for tile in tiles(arch) if model is None else (tile_of(arch, model.num_heads),):
            yield attend(dtype, shape, tile)
        yield dense.merge(dtype, shape)


def tiles(arch: int) -> tuple[Tile, ...]:
    """In order of the heads that they take."""
    tiles = dense.decode_tiles(arch)
    if tiles[-1].rows < WIDEST.rows:
        return tiles
    return (*tiles[:-1], WIDEST_ON_SM10X if arch // 10 == 10 else WIDEST)


def tile_of(arch: int, num_heads: int) -> Tile:
    """The smallest that takes all heads, else the largest."""
    return next((tile for tile in tiles(arch) if tile.rows >= num_heads), tiles(arch)[-1])


def attend(dtype: str, shape: LatentShape, tile: Tile) -> Variant:
    pointer = f"*{TRITON_TYPES[dtype]}"
    return variant(
        "sparse_mla",
        "kernels.sparse_mla.triton:attend_kernel",
        (*(pointer,) * 4, "*fp32", "*fp32", "*i32", "*i32", *("i32",) * 7, "fp32"),
        {"RANK": shape.rank, "ROPE": shape.rope, "ROWS": tile.rows, "COLUMNS": tile.columns},
        num_warps=tile.num_warps,
        num_stages=tile.num_stages,
    )
