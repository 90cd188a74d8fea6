"""The closed set of attention kernels, and the tiles that each architecture gets."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, NamedTuple

from kernels.cast.architectures import ARCHITECTURES
from kernels.context import possible
from kernels.paged_attention import SPLIT
from kernels.selection import Context
from kernels.variants import TRITON_TYPES, Constant, Variant, variant

HEAD_DIMS: Final = (64, 96, 128, 256)
DTYPES: Final = ("bfloat16", "float16")
FP8: Final = "float8_e4m3fn"

# Rows of a decode's tile: query heads that share a key-value head. 16 is the least that a matrix unit takes.
DECODE_ROWS: Final = (16, 64)


class Tile(NamedTuple):
    rows: int  # query heads times tokens
    columns: int  # tokens of the context
    num_warps: int
    num_stages: int


# By memory that a program may share (163 KB, 99 KB, 227 KB), then by head size. Measured on sm_90 with
# tests/gpu/bench/tune_attention.py; elsewhere the largest that fit and keep everything in registers: what a thread
# spills is in the manifest, and tests/cast/test_spills.py keeps it small. Heads of 256 on sm_90 spill (88 bytes a
# thread, 384 with an FP8 cache) and are still fastest: 776 us against 991 without spills, and 1,096 against 1,253
# (H100, 64 sequences of 64 tokens with 4,096 of context).
_A100, _SMALL, _HOPPER = 163 * 1024, 99 * 1024, 227 * 1024
PREFILL_TILES: Final[dict[int, dict[int, Tile]]] = {
    _A100: {64: Tile(128, 64, 4, 3), 96: Tile(128, 64, 8, 2), 128: Tile(128, 64, 8, 2), 256: Tile(64, 32, 8, 2)},
    _SMALL: {64: Tile(128, 64, 8, 2), 96: Tile(64, 64, 8, 2), 128: Tile(64, 64, 8, 2), 256: Tile(64, 32, 8, 1)},
    _HOPPER: {64: Tile(128, 64, 4, 3), 96: Tile(128, 128, 8, 2), 128: Tile(128, 128, 8, 2), 256: Tile(128, 64, 8, 3)},
}
# An FP8 cache must be widened, which takes registers.
FP8_PREFILL_TILES: Final[dict[int, dict[int, Tile]]] = {
    _A100: {64: Tile(128, 64, 8, 3), 96: Tile(128, 32, 8, 2), 128: Tile(128, 32, 8, 2), 256: Tile(64, 32, 8, 2)},
    _SMALL: PREFILL_TILES[_SMALL],
    _HOPPER: PREFILL_TILES[_HOPPER],
}
# Where pages were copied together first, so that the bulk copy engine reads them.
GATHERED_TILES: Final[dict[int, dict[int, Tile]]] = {
    _SMALL: {64: Tile(128, 64, 8, 2), 128: Tile(64, 64, 4, 2), 256: Tile(64, 32, 8, 1)},
    _HOPPER: {64: Tile(64, 128, 4, 2), 128: Tile(128, 128, 8, 3), 256: Tile(64, 64, 4, 3)},
}
DECODE_TILES: Final[dict[int, dict[int, Tile]]] = {
    _A100: {64: Tile(0, 64, 4, 3), 96: Tile(0, 64, 4, 3), 128: Tile(0, 64, 4, 3), 256: Tile(0, 32, 8, 2)},
    _SMALL: {64: Tile(0, 64, 4, 3), 96: Tile(0, 32, 4, 3), 128: Tile(0, 32, 4, 3), 256: Tile(0, 32, 8, 1)},
    _HOPPER: {64: Tile(0, 128, 4, 2), 96: Tile(0, 64, 4, 3), 128: Tile(0, 64, 4, 2), 256: Tile(0, 32, 4, 3)},
}
# An FP8 cache is half the bytes: longer tiles.
FP8_DECODE_TILES: Final[dict[int, dict[int, Tile]]] = {
    _A100: DECODE_TILES[_A100],
    _SMALL: DECODE_TILES[_SMALL],
    _HOPPER: {64: Tile(0, 128, 4, 3), 96: Tile(0, 128, 4, 3), 128: Tile(0, 128, 4, 2), 256: Tile(0, 64, 4, 3)},
}
# A launch of so few programs waits for its first keys and values more than for the memory's rate. So from sm_90 on they
# are brought into the L2 cache while the kernel before still runs; measured by tests/gpu/bench/tune_few_decodes.py.
# Of more programs, most of which start later, that makes 64 sequences of 3,000 a third slower.
FEW_PROGRAMS = 512
# What such a launch takes in place of the tile above.
FEW_DECODE_TILES: Final[dict[int, dict[int, Tile]]] = {_A100: {}, _SMALL: {}, _HOPPER: {128: Tile(0, 128, 4, 3)}}
# A decode's larger tile, measured nowhere yet, needs these to stay in registers.
LEAST_WIDE_WARPS: Final = {64: 4, 96: 4, 128: 4, 256: 8}
MAX_GATHERED: Final = 256  # sequences
# Query heads times tokens of a sequence from which on copying its pages together pays.
ROWS_WORTH_GATHERING: Final = 2048

_GEOMETRY = ("*i32", "*i32", "*i32")  # query_start_loc, seq_lens, block_tables
_PREFILL_NUMBERS = ("i32",) * 10 + ("fp32",) * 3
_DECODE_NUMBERS = ("i32",) * 8 + ("fp32",) * 3


def variants(arch: int, model: Context | None = None) -> Iterator[Variant]:
    yield from dict.fromkeys(_variants(arch, model))


def _variants(arch: int, model: Context | None) -> Iterator[Variant]:
    if model is None:
        shapes = [(dtype, dim, fp8, cap) for dtype in DTYPES for dim in HEAD_DIMS for fp8 in (False, True)
                  for cap in possible("soft_cap")]  # fmt: skip
        rows: tuple[int, ...] = DECODE_ROWS
    else:
        shapes = [(model.dtype, model.head_dim, model.kv_cache_dtype == FP8, model.soft_cap)]
        rows = (decode_rows(model.num_heads // model.num_kv_heads),)
    for dtype, head_dim, fp8, soft_cap in shapes:
        yield prefill(arch, dtype, head_dim, fp8, soft_cap)
        if gathers(arch, head_dim):
            yield prefill(arch, dtype, head_dim, False, soft_cap, gathered=True)
            yield gather(arch, dtype, fp8)
        for count in rows:
            yield decode(arch, dtype, head_dim, fp8, soft_cap, count)
            if prefetches(arch):
                yield decode(arch, dtype, head_dim, fp8, soft_cap, count, few=True)
    yield from (merge(dtype, head_dim) for dtype, head_dim in dict.fromkeys((shape[:2]) for shape in shapes))


def memory_of(arch: int) -> int:
    """The key of the tables above."""
    return ARCHITECTURES[f"sm_{arch}"].shared_memory


def decode_rows(group: int) -> int:
    """The rows of a decode's tile for `group` query heads a key-value head; groups beyond the largest take several."""
    return next((rows for rows in DECODE_ROWS if rows >= group), DECODE_ROWS[-1])


def gathers(arch: int, head_dim: int) -> bool:
    """Whether a long prefill has its pages copied together. A bulk copy takes a power of two of columns."""
    return arch >= 90 and head_dim in GATHERED_TILES[memory_of(arch)]


def prefill_tiles(fp8: bool, gathered: bool) -> dict[int, dict[int, Tile]]:
    if gathered:
        return GATHERED_TILES
    return FP8_PREFILL_TILES if fp8 else PREFILL_TILES


def prefill(arch: int, dtype: str, head_dim: int, fp8: bool, soft_cap: bool, gathered: bool = False) -> Variant:
    tile = prefill_tiles(fp8, gathered)[memory_of(arch)][head_dim]
    pointer, cache = f"*{TRITON_TYPES[dtype]}", _cache_pointer(arch, dtype, fp8)
    return variant(
        "paged_attention",
        "kernels.paged_attention.triton_kernels:prefill_kernel",
        (pointer, cache, cache, pointer, "*fp32", *_GEOMETRY, *_PREFILL_NUMBERS),
        _constants(head_dim, tile.rows, tile.columns, soft_cap) | {"PAGED": not gathered, "MAX_SEQS": MAX_GATHERED},
        num_warps=tile.num_warps,
        num_stages=tile.num_stages,
    )


def prefetches(arch: int) -> bool:
    """Whether decodes of few programs have a variant of their own."""
    return arch >= 90


def decode(arch: int, dtype: str, head_dim: int, fp8: bool, soft_cap: bool, rows: int, few: bool = False) -> Variant:
    memory = memory_of(arch)
    tile = (FP8_DECODE_TILES if fp8 else DECODE_TILES)[memory][head_dim]
    if few and not fp8 and rows == DECODE_ROWS[0]:
        tile = FEW_DECODE_TILES[memory].get(head_dim, tile)
    if rows > DECODE_ROWS[0]:
        tile = tile._replace(num_warps=max(tile.num_warps, LEAST_WIDE_WARPS[head_dim]))
    pointer, cache = f"*{TRITON_TYPES[dtype]}", _cache_pointer(arch, dtype, fp8)
    return variant(
        "paged_attention",
        "kernels.paged_attention.triton_kernels:decode_kernel",
        (pointer, cache, cache, pointer, "*fp32", "*fp32", "*fp32", "*i32", "*i32", *_DECODE_NUMBERS),
        _constants(head_dim, rows, tile.columns, soft_cap) | {"SPLIT": SPLIT, "PREFETCHES": few},
        num_warps=tile.num_warps,
        num_stages=tile.num_stages,
    )


def gather(arch: int, dtype: str, fp8: bool) -> Variant:
    cache, pointer = _cache_pointer(arch, dtype, fp8), f"*{TRITON_TYPES[dtype]}"
    return variant(
        "paged_attention",
        "kernels.paged_attention.triton_kernels:gather_kernel",
        (cache, cache, pointer, pointer, *_GEOMETRY, "i32", "i32", "i32", "i32", "i32"),
        {"TOKENS": 16, "BLOCK": 512, "MAX_SEQS": MAX_GATHERED},
        num_warps=8,
    )


def merge(dtype: str, head_dim: int) -> Variant:
    return variant(
        "paged_attention",
        "kernels.paged_attention.triton_kernels:merge_kernel",
        ("*fp32", "*fp32", "*fp32", f"*{TRITON_TYPES[dtype]}", "*i32", "i32", "i32", "i32", "i32", "i32"),
        {"HEAD_DIM": head_dim, "BLOCK_DIM": _padded(head_dim), "SPLIT": SPLIT, "PARTS": 8},
        num_warps=1,  # so that many run at a time: a sequence of two parts is merged while its loads are on the way
    )


def _constants(head_dim: int, rows: int, columns: int, soft_cap: bool) -> dict[str, Constant]:
    return {
        "HEAD_DIM": head_dim,
        "BLOCK_DIM": _padded(head_dim),
        "ROWS": rows,
        "COLUMNS": columns,
        "SOFT_CAP": soft_cap,
    }


def _cache_pointer(arch: int, dtype: str, fp8: bool) -> str:
    """Below sm_89 no instruction reads FP8: the kernel takes bytes."""
    if not fp8:
        return f"*{TRITON_TYPES[dtype]}"
    return f"*{TRITON_TYPES[FP8]}" if arch >= 89 else "*u8"


def _padded(head_dim: int) -> int:
    return 1 << (head_dim - 1).bit_length()
