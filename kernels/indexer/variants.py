"""The closed set of an indexer's kernels, and the tiles that each architecture gets."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, NamedTuple

from kernels.fp8_linear.variants import has_fp8
from kernels.index_cache.variants import DIM, codes_of
from kernels.selection import Context
from kernels.variants import Variant, variant

HEADS: Final = (32, 64)  # of GLM 5 and of DeepSeek V3.2
# Scores that the choice goes through at a time: as many as stay in registers, and fewer where that is enough.
SELECTED: Final = 8192
FEW_SELECTED: Final = 2048
_MODULE: Final = "kernels.indexer.triton_kernels"


class Tile(NamedTuple):
    """Keys that a program scores, for so many queries of a prefill one after the other."""

    keys: int
    queries: int
    num_warps: int


# Not measured yet: tests/gpu/bench/tune_sparse.py.
TILE: Final = Tile(128, 16, 4)
DECODE_TILE: Final = Tile(128, 1, 4)


def variants(arch: int, model: Context | None = None) -> Iterator[Variant]:
    for heads in HEADS if model is None else (model.index_heads,):
        for mxfp4 in formats(model):
            for tile in (DECODE_TILE, TILE):
                yield score(arch, heads, tile, mxfp4)
    yield from (select(decodes=True), select(decodes=False))


def formats(model: Context | None) -> tuple[bool, ...]:
    """Whether keys are in MXFP4."""
    return (False, True) if model is None else (model.index_mxfp4,)


def score(arch: int, heads: int, tile: Tile, mxfp4: bool) -> Variant:
    codes = "*u8" if mxfp4 else codes_of(arch)
    return variant(
        "indexer",
        f"{_MODULE}:score_kernel",
        (codes, "*fp32", codes, "*fp32", "*fp32", "*i32", "*i32", "*i32", *("i32",) * 9),
        {"HEADS": heads, "DIM": DIM, "KEYS": tile.keys, "QUERIES": tile.queries, "CODED": not has_fp8(arch),
         "MXFP4": mxfp4},
        num_warps=tile.num_warps,
    )  # fmt: skip


def select(*, decodes: bool) -> Variant:
    return variant(
        "indexer",
        f"{_MODULE}:select_kernel",
        (*("*fp32", "*i32", "*i32", "*i32", "*i32", "*i32"), *("i32",) * 7),
        {"FEW": FEW_SELECTED, "BLOCK": SELECTED, "DECODES": decodes},
        num_warps=16,
    )
