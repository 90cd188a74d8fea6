"""The closed set of linear kernels for few tokens, and which tile a product of some size gets."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from kernels.context import Context
from kernels.gated_activation import ACTIVATIONS
from kernels.variants import TRITON_TYPES, Variant, variant

KERNEL = "kernels.linear.triton:few_tokens_kernel"
UNIT = 16  # rows of weights and of tokens are multiples of it
DTYPES = ("bfloat16", "float16")
AHEAD = 512  # of each row of a tile's weights, how many are brought into the L2 cache while the kernel before runs
MOST_SPLITS = 8


@dataclass(frozen=True)
class Tile:
    """What a program computes: up to `tokens` tokens by `outputs` outputs, `inner` at a time. `weight_first`: the
    weights are the left side of the product, whose rows the matrix units take 64 at a time."""

    tokens: int
    outputs: int
    inner: int
    num_warps: int
    num_stages: int
    weight_first: bool = False


# By the most tokens for which they are meant, each with one for more outputs, of which there are as many tiles as
# processors or more. Enough bytes of weights are under way to keep the memory busy: measured on an H100 with
# tests/gpu/bench/tune_linear.py; those of later architectures are by what fits into shared memory. Before sm_90, where
# a kernel cannot start before the last one has ended, cuBLAS is as fast.
_Tiles = tuple[tuple[Tile, ...], ...]
_HOPPER: _Tiles = (
    (Tile(16, 64, 128, 4, 6, True),),
    (Tile(32, 32, 256, 4, 4), Tile(32, 64, 128, 4, 5, True)),
    (Tile(64, 32, 128, 4, 6), Tile(64, 64, 128, 4, 5, True)),
)
_LARGE: _Tiles = (
    (Tile(16, 64, 128, 4, 6),),
    (Tile(32, 32, 256, 4, 4), Tile(32, 64, 128, 4, 5)),
    (Tile(64, 32, 128, 4, 6), Tile(64, 64, 128, 4, 5)),
)
_SMALL: _Tiles = (
    (Tile(16, 32, 128, 4, 6),),
    (Tile(32, 32, 128, 4, 4), Tile(32, 64, 128, 4, 3)),
    (Tile(64, 32, 128, 4, 3), Tile(64, 64, 64, 4, 4)),
)
TILES: dict[int, _Tiles] = {90: _HOPPER, 100: _LARGE, 103: _LARGE, 120: _SMALL, 121: _SMALL}
MOST_TOKENS = 64


def variants(arch: int, model: Context | None = None) -> Iterator[Variant]:
    for dtype in DTYPES if model is None else (model.dtype,):
        for narrow, *wide in TILES.get(arch, ()):
            for activation in ("", *(ACTIVATIONS if model is None else (model.activation,))):
                yield of(dtype, narrow, False, activation)
                yield of(dtype, narrow, True, activation)
                yield from (of(dtype, tile, False, activation) for tile in wide)
            if model is None or model.float32_products:
                yield of(dtype, narrow, False, wide=True)
                yield of(dtype, narrow, True, wide=True)
                yield from (of(dtype, tile, False, wide=True) for tile in wide)


def tile_of(arch: int, tokens: int, outputs: int, processors: int) -> Tile:
    narrow, *wide = next(tiles for tiles in TILES[arch] if tokens <= tiles[0].tokens)
    return next((tile for tile in wide if -(-outputs // tile.outputs) >= processors), narrow)


def splits_of(tile: Tile, outputs: int, inner: int, processors: int) -> int:
    """Into how many parts the inner dimension is split: as few as give nearly every processor a program. A part is at
    least four steps; none is empty."""
    tiles, steps = -(-outputs // tile.outputs), -(-inner // tile.inner)
    wanted = -(-9 * processors // (10 * tiles))
    wanted = max(min(wanted, steps // 4, MOST_SPLITS), 1)
    # Parts are of equally many steps: 9 in 4 are parts of 3, of which 3 cover all.
    return -(-steps // -(-steps // wanted))


def of(dtype: str, tile: Tile, split: bool, activation: str = "", *, wide: bool = False) -> Variant:
    """`wide`: the result is in float32."""
    given = f"*{TRITON_TYPES[dtype]}"
    return variant(
        "linear",
        KERNEL,
        (given, given, given, "*fp32", "*i32", "*fp32" if wide else given, *("i32",) * 5, "fp32"),
        {"TOKENS": tile.tokens, "OUTPUTS": tile.outputs, "INNER": tile.inner, "WEIGHT_FIRST": tile.weight_first,
         "SPLIT": split, "ACTIVATION": activation, "AHEAD": AHEAD},
        num_warps=tile.num_warps,
        num_stages=tile.num_stages,
    )  # fmt: skip
