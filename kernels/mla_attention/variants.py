"""The closed set of latent attention's kernels, and the tiles that each architecture gets."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Final

from kernels.cast.architectures import ARCHITECTURES
from kernels.context import possible
from kernels.mla_attention import SHAPES, LatentShape
from kernels.paged_attention.variants import Tile
from kernels.selection import Context
from kernels.variants import TRITON_TYPES, Variant, variant

DTYPES: Final = ("bfloat16", "float16")

# By memory that a program may share (163 KB, 99 KB, 227 KB). Of decodes in order of the query heads that a tile takes,
# at least 16, as a matrix unit's. A tile's latents stay in shared memory for both products, with the next on their way;
# sums of 64 heads fill the registers, and no more fit. Not measured yet: tests/gpu/bench/tune_latent.py.
_A100, _SMALL, _LARGE = 163 * 1024, 99 * 1024, 227 * 1024
DECODE_TILES: Final[dict[int, tuple[Tile, ...]]] = {
    _A100: (Tile(16, 32, 8, 3), Tile(32, 32, 8, 3)),
    _SMALL: (Tile(16, 32, 8, 3), Tile(32, 16, 8, 3)),
    _LARGE: (Tile(16, 32, 4, 3), Tile(32, 32, 8, 3), Tile(64, 64, 8, 2)),
}
# On sm_100 sums lie in the matrix units' own memory, on their way through which they take shared memory too.
WIDEST_ON_SM10X: Final = Tile(64, 32, 8, 2)
# What one copy of sm_90's kernel for many heads brings, in tokens: it must not cross a block's end.
LEAST_BLOCK: Final = 16
# By the size of a head's value.
PREFILL_TILES: Final[dict[int, dict[int, Tile]]] = {
    _A100: {128: Tile(128, 32, 8, 2), 256: Tile(64, 32, 8, 2)},
    _SMALL: {128: Tile(64, 32, 4, 2), 256: Tile(64, 32, 8, 1)},
    _LARGE: {128: Tile(128, 64, 8, 2), 256: Tile(64, 64, 8, 2)},
}

_OP = "mla_attention"
_KERNELS = "kernels.mla_attention.triton_kernels"


def variants(arch: int, model: Context | None = None) -> Iterator[Variant]:
    yield from dict.fromkeys(_variants(arch, model))


def _variants(arch: int, model: Context | None) -> Iterator[Variant]:
    for dtype, shape in latents(model):
        tiles = decode_tiles(arch) if model is None else (decode_tile(arch, model.num_heads),)
        for tile in tiles:
            yield decode(dtype, shape, tile)
        if any(divides_warps(arch, tile) for tile in tiles):
            yield hopper_decode(dtype)
        yield merge(dtype, shape)
        yield gather(dtype, shape)
        yield prefill(arch, dtype, shape)


def latents(model: Context | None) -> Iterator[tuple[str, LatentShape]]:
    """The model's dtype and latents; without a model, all that some may have."""
    if model is not None:
        yield model.dtype, LatentShape(*model.latent_shape)
    elif True in possible("latent_attention"):
        yield from itertools.product(DTYPES, SHAPES)


def memory_of(arch: int) -> int:
    """The key of the tables above."""
    return ARCHITECTURES[f"sm_{arch}"].shared_memory


def decode_tiles(arch: int) -> tuple[Tile, ...]:
    tiles = DECODE_TILES[memory_of(arch)]
    return (*tiles[:-1], WIDEST_ON_SM10X) if arch // 10 == 10 else tiles


def decode_tile(arch: int, num_heads: int) -> Tile:
    """The smallest that takes all heads, else the largest: several read the same latents then."""
    tiles = decode_tiles(arch)
    return next((tile for tile in tiles if tile.rows >= num_heads), tiles[-1])


def decode(dtype: str, shape: LatentShape, tile: Tile) -> Variant:
    pointer = f"*{TRITON_TYPES[dtype]}"
    return variant(
        _OP,
        f"{_KERNELS}:decode_kernel",
        (*(pointer,) * 4, "*fp32", "*fp32", "*i32", "*i32", *("i32",) * 8, "fp32"),
        {"RANK": shape.rank, "ROPE": shape.rope, "ROWS": tile.rows, "COLUMNS": tile.columns},
        num_warps=tile.num_warps,
        num_stages=tile.num_stages,
    )


def divides_warps(arch: int, tile: Tile) -> bool:
    """Whether decodes of this tile have a kernel of their own in caches of `LEAST_BLOCK` tokens a block or more."""
    return arch == 90 and tile.rows == 64


def hopper_decode(dtype: str) -> Variant:
    """For any of `SHAPES`: in the cache they are the same."""
    pointer = f"*{TRITON_TYPES[dtype]}"
    return variant(
        _OP,
        "kernels.mla_attention.hopper_kernels:hopper_decode_kernel",
        (*(pointer,) * 4, "*fp32", "*fp32", "*i32", "*i32", *("i32",) * 9, "fp32"),
        {},
        num_warps=4,
        max_registers=168,  # of three warp groups, before they share them out
    )


def merge(dtype: str, shape: LatentShape) -> Variant:
    return variant(
        _OP,
        f"{_KERNELS}:merge_kernel",
        ("*fp32", "*fp32", f"*{TRITON_TYPES[dtype]}", "*i32", *("i32",) * 5),
        {"RANK": shape.rank, "PARTS": 4},
        num_warps=4,
    )


def gather(dtype: str, shape: LatentShape) -> Variant:
    pointer = f"*{TRITON_TYPES[dtype]}"
    return variant(
        _OP,
        f"{_KERNELS}:gather_kernel",
        (pointer, pointer, "*i32", "*i64", "*i32", "i32", "i32"),
        {"RANK": shape.rank, "ROPE": shape.rope, "TOKENS": 16},
        num_warps=8,
    )


def prefill(arch: int, dtype: str, shape: LatentShape) -> Variant:
    tile = PREFILL_TILES[memory_of(arch)][shape.value]
    pointer = f"*{TRITON_TYPES[dtype]}"
    return variant(
        _OP,
        f"{_KERNELS}:prefill_kernel",
        (*(pointer,) * 4, "*i32", "*i32", "*i64", *("i32",) * 4, "fp32"),
        {
            "RANK": shape.rank,
            "NOPE": shape.nope,
            "ROPE": shape.rope,
            "VALUE": shape.value,
            "BLOCK_NOPE": 1 << (shape.nope - 1).bit_length(),
            "BLOCK_VALUE": 1 << (shape.value - 1).bit_length(),
            "ROWS": tile.rows,
            "COLUMNS": tile.columns,
        },
        num_warps=tile.num_warps,
        num_stages=tile.num_stages,
    )
