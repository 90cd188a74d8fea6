"""The closed set of these kernels, and the tiles that each architecture gets."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from kernels.cast.architectures import ARCHITECTURES
from kernels.packed_entries.variants import DIM, ROPE, pages_of
from kernels.paged_attention.variants import Tile
from kernels.selection import Context
from kernels.variants import TRITON_TYPES, Variant, variant

DTYPES: Final = ("bfloat16", "float16")
WINDOW: Final = 128  # tokens, of every published model
_MODULE: Final = "kernels.compressed_attention.triton_kernels"

# By memory that a program may share (163 KB, 99 KB, 227 KB), in order of the heads that a tile takes: unpacked entries
# lie there for both products, with the next ones, packed, on their way. Where a matrix unit takes queries from
# registers, those of 16 heads fill half of them. Measured on an H100 by `tests.gpu.bench.deepseek_v4 tune attention`,
# elsewhere by what fits.
_A100, _SMALL, _LARGE = 163 * 1024, 99 * 1024, 227 * 1024
TILES: Final[dict[int, tuple[Tile, ...]]] = {
    _A100: (Tile(16, 32, 8, 2),),
    _SMALL: (Tile(16, 16, 4, 2),),
    _LARGE: (Tile(16, 64, 8, 2), Tile(64, 64, 8, 2)),
}
# Heads of a tile for whose decodes sm_90 has a kernel of its own.
HOPPER_ROWS: Final = 64
# On sm_100 sums lie in the matrix units' own memory, on their way through which they take shared memory too.
WIDEST_ON_SM10X: Final = Tile(64, 32, 8, 2)


def variants(arch: int, model: Context | None = None) -> Iterator[Variant]:
    for dtype in DTYPES if model is None else (model.dtype,):
        for decodes in (True, False):
            for tile in tiles(arch) if model is None else (tile_of(arch, model.num_heads),):
                for chosen in _kinds(model):
                    yield attend(arch, dtype, tile, decodes, chosen)
                    if decodes and divides_warps(arch, tile):  # but for rings with places for drafts
                        yield hopper_decode(dtype, chosen)
            yield keep(arch, dtype, ring=decodes)
        yield merge(dtype)


def _kinds(model: Context | None) -> tuple[bool, ...]:
    """Layers without an indexer, and those with one where a model has such."""
    return (False,) if model is not None and not model.index_heads else (False, True)


def tiles(arch: int) -> tuple[Tile, ...]:
    tiles = TILES[ARCHITECTURES[f"sm_{arch}"].shared_memory]
    return (*tiles[:-1], WIDEST_ON_SM10X) if arch // 10 == 10 else tiles


def tile_of(arch: int, num_heads: int) -> Tile:
    """The smallest that takes all heads, else the largest."""
    return next((tile for tile in tiles(arch) if tile.rows >= num_heads), tiles(arch)[-1])


def attend(arch: int, dtype: str, tile: Tile, decodes: bool, chosen: bool) -> Variant:
    """Over compressed entries that were `chosen`, or over all; of `decodes` in parts."""
    pointer = f"*{TRITON_TYPES[dtype]}"
    return variant(
        "compressed_attention",
        f"{_MODULE}:attend_kernel",
        (pointer, pointer, "*fp32", "*fp32", *pages_of(arch) * 3, "*i64", "*i32", "*i32", "*i32", "*fp32", "*fp32",
         "*i32", "*i32", *("i32",) * 12, "fp32"),
        {"DIM": DIM, "ROPE": ROPE, "WINDOW": WINDOW, "ROWS": tile.rows, "COLUMNS": tile.columns, "DECODES": decodes,
         "CHOSEN": chosen},
        num_warps=tile.num_warps,
        num_stages=tile.num_stages,
    )  # fmt: skip


def divides_warps(arch: int, tile: Tile) -> bool:
    """Whether decodes of this tile have a kernel of their own."""
    return arch == 90 and tile.rows == HOPPER_ROWS


def hopper_decode(dtype: str, chosen: bool) -> Variant:
    codes, _, scales = pages_of(90)
    return variant(
        "compressed_attention",
        "kernels.compressed_attention.hopper_kernels:hopper_decode_kernel",
        (f"*{TRITON_TYPES[dtype]}", "*fp32", "*fp32", codes, scales, codes, scales, "*i64", *("*i32",) * 4,
         *("i32",) * 9, "fp32"),
        {"CHOSEN": chosen},
        num_warps=4,
        max_registers=168,  # of three warp groups, before they share them out
    )  # fmt: skip


def merge(dtype: str) -> Variant:
    return variant(
        "compressed_attention",
        f"{_MODULE}:merge_kernel",
        ("*fp32", "*fp32", f"*{TRITON_TYPES[dtype]}", "*i32", "*fp32", "*fp32", "*i32", *("i32",) * 7),
        {"DIM": DIM, "ROPE": ROPE, "WINDOW": WINDOW, "PARTS": 4},
    )


def keep(arch: int, dtype: str, *, ring: bool) -> Variant:
    """Into sequences' rings, or into one page."""
    return variant(
        "compressed_attention",
        f"{_MODULE}:keep_kernel",
        (f"*{TRITON_TYPES[dtype]}", *pages_of(arch), "*i64", "*i32", "*i32", *("i32",) * 4),
        {"DIM": DIM, "WINDOW": WINDOW, "RING": ring},
        num_warps=1,
    )
