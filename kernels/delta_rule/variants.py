"""The closed set of gated delta kernels, and the tiles that each architecture gets."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, NamedTuple

from kernels.cast.architectures import ARCHITECTURES
from kernels.selection import Context
from kernels.variants import TRITON_TYPES, Variant, variant

KEY_DIMS: Final = (64, 128)
DTYPES: Final = ("bfloat16", "float16")
UNIT: Final = 8  # head sizes and strides are multiples of it: 16 bytes
CHUNK: Final = 32  # tokens of a prefill that are taken together
DECODE_VALUES: Final = 32  # values of a head that one program of a decode takes: few sequences occupy the GPU too


class Tile(NamedTuple):
    """So many columns of a chunk's keys or values are taken at a time."""

    columns: int
    num_warps: int
    num_stages: int = 1


# By memory that a program may share (163 KB, 99 KB, 227 KB). On an H200 8,192 tokens of Qwen3-Next take 609 us in
# chunks of 32 tokens, and 730 us in chunks of 64, whose systems take longer to solve than their longer products save.
# Three stages of the scan's loads must fit, the least that has them ahead of the products.
_A100, _SMALL, _HOPPER = 163 * 1024, 99 * 1024, 227 * 1024
PREPARE_TILE: Final = Tile(128, 4)  # of keys, at most as many as there are
SCAN_TILES: Final = {_A100: Tile(32, 4, 4), _SMALL: Tile(32, 4, 3), _HOPPER: Tile(16, 4, 4)}


def variants(arch: int, model: Context | None = None) -> Iterator[Variant]:
    dtypes = DTYPES if model is None else (model.dtype,)
    key_dims = KEY_DIMS if model is None else (model.gated_delta_head_dim,)
    for dtype in dtypes:
        for key_dim in key_dims:
            yield from (prepare(dtype, key_dim), scan(arch, dtype, key_dim))
            yield from (decode(dtype, key_dim), chain(dtype, key_dim))


def decode(dtype: str, key_dim: int) -> Variant:
    pointer = f"*{TRITON_TYPES[dtype]}"
    return variant(
        "delta_rule",
        "kernels.delta_rule.triton_kernels:decode_kernel",
        (*(pointer,) * 5, "*fp32", "*fp32", "*fp32", "*i64", pointer, *("i32",) * 8),
        {"KEY_DIM": key_dim, "VALUES": DECODE_VALUES},
    )


def chain(dtype: str, key_dim: int) -> Variant:
    pointer = f"*{TRITON_TYPES[dtype]}"
    return variant(
        "delta_rule",
        "kernels.delta_rule.triton_kernels:chain_kernel",
        (*(pointer,) * 5, *("*fp32",) * 3, "*i64", *(pointer,) * 4, *("*i32",) * 3, *("i32",) * 10),
        {"KEY_DIM": key_dim, "VALUES": DECODE_VALUES},
    )


def prepare(dtype: str, key_dim: int) -> Variant:
    tile, pointer = PREPARE_TILE, f"*{TRITON_TYPES[dtype]}"
    return variant(
        "delta_rule",
        "kernels.delta_rule.triton_kernels:prepare_kernel",
        (*(pointer,) * 5, "*fp32", "*fp32", "*i32", *(pointer,) * 3, "*fp32", "*fp32", *("i32",) * 9),
        {"KEY_DIM": key_dim, "CHUNK": CHUNK, "BLOCK": min(tile.columns, key_dim)},
        num_warps=tile.num_warps,
        num_stages=tile.num_stages,
    )


def scan(arch: int, dtype: str, key_dim: int) -> Variant:
    tile, pointer = SCAN_TILES[memory_of(arch)], f"*{TRITON_TYPES[dtype]}"
    return variant(
        "delta_rule",
        "kernels.delta_rule.triton_kernels:scan_kernel",
        (*(pointer,) * 4, *("*fp32",) * 3, "*i64", "*i32", *("i32",) * 6),
        {"KEY_DIM": key_dim, "CHUNK": CHUNK, "VALUES": tile.columns},
        num_warps=tile.num_warps,
        num_stages=tile.num_stages,
    )


def memory_of(arch: int) -> int:
    """The key of the tables above."""
    return ARCHITECTURES[f"sm_{arch}"].shared_memory
