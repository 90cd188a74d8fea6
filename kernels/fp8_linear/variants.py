"""The closed set of block-scaled FP8 linear kernels, and which tile a product of some size gets.

From sm_89 on the activations are rounded to FP8 and multiplied so. sm_80 and sm_86 have no FP8: there the weights are
decoded to the dtype of the activations, which stay as they are. So they are for few tokens from sm_90 on, where a
product takes as long as reading its weights.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from kernels.context import Context
from kernels.fp8_linear import GROUP
from kernels.gated_activation import ACTIVATIONS
from kernels.variants import TRITON_TYPES, Variant, variant

_MODULE = "kernels.fp8_linear.triton"
UNIT = 16  # widths are multiples of it: 16 bytes in FP8
ROUNDED_GROUPS = 16  # groups of 128 that a program of the rounding kernel takes
REDUCE_BLOCK = 1024
DTYPES = ("bfloat16", "float16")
PROGRAMS = 256  # as many as keep the largest GPUs busy: a product of fewer tiles is split along its inner dimension
MOST_SPLITS = 16
FEW_TOKENS = 16  # rows of a product that has the kernel for few
AHEAD = 1024  # of each row of a tile's weights, how many are brought into the L2 cache while the kernel before runs
MOST_SPLITS_OF_FEW = 8


@dataclass(frozen=True)
class Tile:
    """What a program computes: `block_m` tokens by two halves of `block_n` outputs each, `block_k` at a time."""

    block_m: int
    block_n: int
    block_k: int
    num_warps: int
    num_stages: int


@dataclass(frozen=True)
class FewTile:
    """What a program of the kernel for few tokens computes: `outputs` of them, 128 of the inner dimension at a time.
    `weight_first`: the weights are the left side of the product, whose rows the matrix units take 64 at a time."""

    outputs: int
    num_warps: int
    num_stages: int
    weight_first: bool = False


# As the tiles of `kernels/linear`, with half the bytes of weights and so more of them for each processor.
FEW: dict[int, FewTile] = {90: FewTile(64, 4, 3, True), 100: FewTile(64, 4, 5), 103: FewTile(64, 4, 5),
                           120: FewTile(32, 4, 6), 121: FewTile(32, 4, 6)}  # fmt: skip

# By the most tokens for which a tile is meant, where there is no kernel for few. The last one is for as many as fill
# the GPU with its tiles.
_BYTES = (Tile(16, 32, 128, 4, 4), Tile(32, 32, 128, 4, 4), Tile(64, 64, 64, 4, 3), Tile(128, 64, 64, 8, 3))
_SMALL = (Tile(16, 32, 128, 4, 4), Tile(32, 32, 128, 4, 4), Tile(64, 64, 128, 4, 3), Tile(128, 64, 128, 8, 3))
_LARGE = (Tile(32, 32, 128, 4, 5), Tile(64, 64, 128, 4, 4), Tile(128, 128, 128, 8, 4))
# Measured on an H200 with tests/gpu/bench/tune_moe.py; the tables of other architectures are by what fits.
_HOPPER = (Tile(32, 32, 128, 4, 5), Tile(64, 64, 128, 4, 4), Tile(128, 128, 128, 16, 4))
TILES: dict[int, tuple[Tile, ...]] = {80: _BYTES, 86: _BYTES, 89: _SMALL, 90: _HOPPER, 100: _LARGE, 103: _LARGE,
                                      120: _SMALL[1:], 121: _SMALL[1:]}  # fmt: skip


def variants(arch: int, model: Context | None = None) -> Iterator[Variant]:
    if model is not None and model.fp8_blocks is None:
        return
    for dtype in DTYPES if model is None else (model.dtype,):
        if arch in FEW:
            for activation in ("", *(ACTIVATIONS if model is None else (model.activation,))):
                yield from (of_few(dtype, FEW[arch], split, activation) for split in (False, True))
        for tile in TILES[arch]:
            yield of(arch, dtype, tile, split=False)
            if splittable(tile):
                yield of(arch, dtype, tile, split=True)
        yield reduce(dtype)
        if has_fp8(arch):
            yield rounding(dtype)


def has_fp8(arch: int) -> bool:
    return arch >= 89


def splittable(tile: Tile) -> bool:
    """A tile of 128 tokens is chosen only where there are enough of them."""
    return tile.block_m < 128


def are_few(arch: int, tokens: int) -> bool:
    return arch in FEW and tokens <= FEW_TOKENS


def tile_of(arch: int, tokens: int, outputs: int, groups: int = 1) -> Tile:
    """The first that takes all tokens at once; for more than it takes, the large one where its tiles fill the GPU, and
    none has outputs of two groups."""
    *small, large = TILES[arch]
    for tile in small:
        if tokens <= tile.block_m:
            return tile
    fills = _tiles(large, tokens, outputs) >= PROGRAMS // 2
    return large if fills and (groups == 1 or outputs // groups % (2 * large.block_n) == 0) else small[-1]


def splits_of_few(tile: FewTile, outputs: int, inner: int, processors: int) -> int:
    """Into how many parts the inner dimension is split: as few as give nearly every processor three programs. A part is
    at least four steps; none is empty."""
    blocks, steps = -(-outputs // tile.outputs), -(-inner // GROUP)
    wanted = max(min(-(-9 * 3 * processors // (10 * blocks)), steps // 4, MOST_SPLITS_OF_FEW), 1)
    return -(-steps // -(-steps // wanted))


def splits_of(tile: Tile, tokens: int, outputs: int, inner: int) -> int:
    """Into how many parts the inner dimension is split. A part is at least four steps of 128, but for the last one,
    which may be shorter; none is empty."""
    if not splittable(tile):
        return 1
    wanted = max(min(PROGRAMS // _tiles(tile, tokens, outputs), inner // (4 * GROUP), MOST_SPLITS), 1)
    groups = -(-inner // GROUP)
    # Parts are of equally many groups: 76 by 12 are parts of 7, of which 11 cover all.
    return -(-groups // -(-groups // wanted))


def _tiles(tile: Tile, tokens: int, outputs: int) -> int:
    return -(-tokens // tile.block_m) * -(-outputs // (2 * tile.block_n))


def of(arch: int, dtype: str, tile: Tile, split: bool) -> Variant:
    wide = f"*{TRITON_TYPES[dtype]}"
    mode = activation_mode(arch, tile.block_m)
    return variant(
        "fp8_linear",
        f"{_MODULE}:fp8_linear_kernel",
        ("*fp8e4nv" if mode == "rounded" else wide, "*fp32", "*fp8e4nv" if has_fp8(arch) else "*u8", "*fp32", wide,
         "*fp32" if split else wide, *("i32",) * 6),
        {"BLOCK_M": tile.block_m, "BLOCK_N": tile.block_n, "BLOCK_K": tile.block_k, "MODE": mode, "SPLIT": split},
        num_warps=tile.num_warps,
        num_stages=tile.num_stages,
    )  # fmt: skip


def of_few(dtype: str, tile: FewTile, split: bool, activation: str = "") -> Variant:
    wide = f"*{TRITON_TYPES[dtype]}"
    return variant(
        "fp8_linear",
        f"{_MODULE}:few_tokens_kernel",
        (wide, "*fp8e4nv", "*fp32", wide, "*fp32", "*i32", wide, *("i32",) * 6, "fp32"),
        {"TOKENS": FEW_TOKENS, "OUTPUTS": tile.outputs, "WEIGHT_FIRST": tile.weight_first, "SPLIT": split,
         "ACTIVATION": activation, "AHEAD": AHEAD},
        num_warps=tile.num_warps,
        num_stages=tile.num_stages,
    )  # fmt: skip


def activation_mode(arch: int, block_m: int) -> str:
    """How a tile of `block_m` tokens gets its activations. "exact": as they are, by decoded weights; "rounding":
    rounded where they are multiplied, again by each tile, which for few tokens is cheaper than a launch; "rounded":
    given as FP8."""
    if not has_fp8(arch):
        return "exact"
    return "rounding" if block_m < 64 else "rounded"


def takes_rounded(arch: int, tokens: int) -> bool:
    """Whether a product of so many tokens is given its activations as FP8."""
    return activation_mode(arch, tile_of(arch, tokens, 1).block_m) == "rounded"


def rounding(dtype: str) -> Variant:
    return variant(
        "fp8_linear",
        f"{_MODULE}:quantise_kernel",
        (f"*{TRITON_TYPES[dtype]}", "*fp8e4nv", "*fp32", "i32", "i32"),
        {"GROUPS": ROUNDED_GROUPS},
    )


def reduce(dtype: str) -> Variant:
    wide = f"*{TRITON_TYPES[dtype]}"
    return variant(
        "fp8_linear",
        f"{_MODULE}:reduce_kernel",
        ("*fp32", wide, wide, "i32", "i32", "i32", "i32"),
        {"BLOCK": REDUCE_BLOCK},
    )
