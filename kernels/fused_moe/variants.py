"""The closed set of mixture-of-experts kernels, and which tile a batch gets.

Weights in FP8 are multiplied as in `fp8_linear`: rounded activations from sm_89 on, decoded weights before.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from kernels.context import Context
from kernels.fp8_linear.variants import activation_mode, has_fp8, rounding
from kernels.gated_activation import ACTIVATIONS
from kernels.variants import TRITON_TYPES, Variant, variant

_SORT = "kernels.fused_moe.sort"
_PRODUCTS = "kernels.fused_moe.products"
UNIT = 16  # widths are multiples of it
DTYPES = ("bfloat16", "float16")
EXPERT_BLOCKS = (32, 128, 256, 512)
MAX_EXPERTS = EXPERT_BLOCKS[-1]
CHUNK = 512  # pairs of a token and an expert that a program sorts
COUNTED_FROM = 1024  # from so many pairs on a kernel of its own counts them; below, every sorting program counts again
PLACES = (2, 4, 8, 16)  # blocks that cover the experts of a token
MAX_TOP_K = PLACES[-1]
SUM_BLOCK = 1024


@dataclass(frozen=True)
class Tile:
    """What a program of the grouped products computes, where an expert has at most `rows` tokens on average: `block_m`
    tokens by `block_n` rows of its weights (twice as many in FP8, as two halves), `block_k` at a time. `weight_first`,
    not in FP8: the weights are the left side of the product, whose rows the matrix units take 64 at a time. Programs
    that run at the same time cover `group` blocks of tokens, which share weights in the L2 cache."""

    rows: int
    block_m: int
    block_n: int
    block_k: int
    num_warps: int
    num_stages: int
    weight_first: bool = False
    group: int = 8


_ANY = 1 << 31
_PLAIN_SMALL = (
    Tile(12, 16, 128, 64, 4, 4),
    Tile(28, 32, 128, 64, 4, 4),
    Tile(80, 64, 128, 64, 4, 3),
    Tile(_ANY, 128, 128, 32, 4, 4),
)
_PLAIN_LARGE = (
    Tile(12, 16, 128, 64, 4, 5),
    Tile(28, 32, 128, 64, 4, 5),
    Tile(80, 64, 128, 64, 4, 4),
    Tile(_ANY, 128, 256, 64, 8, 4),
)
# Measured on an H200 with tests/gpu/bench/tune_moe.py; the tables of other architectures are by what fits.
_PLAIN_HOPPER = (
    Tile(12, 16, 128, 128, 4, 4, True),
    Tile(28, 32, 128, 64, 4, 5),
    Tile(80, 64, 128, 64, 4, 4),
    Tile(_ANY, 128, 256, 64, 8, 3),
)
PLAIN: dict[int, tuple[Tile, ...]] = {80: _PLAIN_SMALL, 86: _PLAIN_SMALL, 89: _PLAIN_SMALL, 90: _PLAIN_HOPPER,
                                      100: _PLAIN_LARGE, 103: _PLAIN_LARGE, 120: _PLAIN_SMALL,
                                      121: _PLAIN_SMALL}  # fmt: skip

# Where activations are given in FP8 (from 64 tokens on), a half covers 128 outputs: the group that shares a scale.
_FP8_BYTES = (
    Tile(12, 16, 64, 128, 4, 4),
    Tile(28, 32, 64, 128, 4, 3),
    Tile(80, 64, 64, 64, 4, 3),
    Tile(_ANY, 128, 64, 64, 8, 3),
)
_FP8_SMALL = (
    Tile(12, 16, 64, 128, 4, 4),
    Tile(28, 32, 64, 128, 4, 3),
    Tile(_ANY, 64, 128, 128, 8, 3),  # 128 tokens would not fit into the registers
)
_FP8_LARGE = (
    Tile(12, 16, 64, 128, 4, 5),
    Tile(28, 32, 64, 128, 4, 4),
    Tile(80, 64, 128, 128, 8, 4),
    Tile(_ANY, 128, 128, 128, 8, 4),
)
_FP8_HOPPER = (
    Tile(12, 16, 64, 128, 4, 3),
    Tile(28, 32, 64, 128, 4, 4),
    Tile(80, 64, 128, 128, 8, 4),
    Tile(_ANY, 128, 128, 128, 16, 3),
)
FP8: dict[int, tuple[Tile, ...]] = {80: _FP8_BYTES, 86: _FP8_BYTES, 89: _FP8_SMALL, 90: _FP8_HOPPER, 100: _FP8_LARGE,
                                    103: _FP8_LARGE, 120: _FP8_SMALL, 121: _FP8_SMALL}  # fmt: skip

# Of weights in MXFP4, on every architecture, measured on an H100 alone. The first is a row by itself, for so few pairs
# that hardly two of them share an expert.
MXFP4_ALONE = 16
MXFP4 = (
    Tile(0, 1, 16, 512, 4, 1),
    Tile(12, 16, 64, 128, 4, 3),
    Tile(28, 32, 64, 128, 4, 3),
    Tile(80, 64, 128, 64, 8, 3),
    Tile(_ANY, 128, 128, 64, 8, 3),
)


def variants(arch: int, model: Context | None = None) -> Iterator[Variant]:
    if model is not None and not model.num_experts:
        return
    dtypes = DTYPES if model is None else (model.dtype,)
    experts = EXPERT_BLOCKS if model is None else (block_of(model.num_experts),)
    activations = ACTIVATIONS if model is None else (model.activation,)
    # A model in FP8 may keep some of its layers unquantised.
    formats = (False,) if model is not None and not model.fp8_experts else (False, True)
    for block in experts:
        yield count(block)
        yield from (place(block, counted) for counted in (False, True))
    for dtype in dtypes:
        for fp8 in formats:
            for tile in (FP8 if fp8 else PLAIN)[arch]:
                for activation in (*activations, ""):
                    yield (
                        fp8_product(arch, dtype, tile, activation) if fp8 else plain_product(dtype, tile, activation)
                    )
        if model is None or model.mxfp4_experts:
            for tile in MXFP4:
                yield from (mxfp4_product(dtype, tile, activation) for activation in (*activations, ""))
        if True in formats and has_fp8(arch):
            # FP8 linear's own kernel rounds what the first product multiplies: a cast holds it once, as that op's.
            yield rounding(dtype)
        if model is None:
            yield from (sum_of(dtype, places) for places in PLACES)
        elif model.experts_per_token > 1 or model.shared_intermediate_size:
            yield sum_of(dtype, places_of(model.experts_per_token))


def block_of(num_experts: int) -> int:
    return next(block for block in EXPERT_BLOCKS if block >= num_experts)


def places_of(top_k: int) -> int:
    return next(places for places in PLACES if places >= top_k)


def tile_of(arch: int, fp8: bool, pairs: int, num_experts: int) -> Tile:
    return next(tile for tile in (FP8 if fp8 else PLAIN)[arch] if pairs <= tile.rows * num_experts)


def mxfp4_tile_of(pairs: int, num_experts: int) -> Tile:
    if pairs <= MXFP4_ALONE:
        return MXFP4[0]
    return next(tile for tile in MXFP4 if pairs <= tile.rows * num_experts)


def most_blocks(pairs: int, num_experts: int, block_m: int) -> int:
    """How many blocks of tokens there can be, however the tokens are spread: each expert's last one may be short."""
    return min(pairs, pairs // block_m + num_experts)


def count(block: int) -> Variant:
    return variant(
        "fused_moe",
        f"{_SORT}:count_kernel",
        ("*i32", "*i32", "i32"),
        {"CHUNK": CHUNK, "BLOCK": block},
        num_warps=8,
    )


def place(block: int, counted: bool) -> Variant:
    return variant(
        "fused_moe",
        f"{_SORT}:place_kernel",
        ("*i32", "*i32", "*i32", "*i32", "i32", "i32"),
        {"CHUNK": CHUNK, "BLOCK": block, "COUNTED": counted},
        num_warps=8,
    )


def plain_product(dtype: str, tile: Tile, activation: str) -> Variant:
    """The first product with its activation, the second with ""."""
    wide = f"*{TRITON_TYPES[dtype]}"
    return variant(
        "fused_moe",
        f"{_PRODUCTS}:plain_product_kernel",
        (wide, wide, "*i32", "*i32", "*fp32", wide, "i32", "i32", "i32", "fp32"),
        {**_constants(tile, activation), "WEIGHT_FIRST": tile.weight_first},
        num_warps=tile.num_warps,
        num_stages=tile.num_stages,
    )


def mxfp4_product(dtype: str, tile: Tile, activation: str) -> Variant:
    """As `plain_product`."""
    wide = f"*{TRITON_TYPES[dtype]}"
    if tile.block_m == 1:
        return variant(
            "fused_moe",
            "kernels.fused_moe.mxfp4:mxfp4_row_kernel",
            ("*i32", "*i32", "*u8", "*i32", "*fp32", wide, "i32", "i32", "i32", "fp32"),
            {"BLOCK_N": tile.block_n, "BLOCK_K": tile.block_k, "ACTIVATION": activation},
            num_warps=tile.num_warps,
        )
    return variant(
        "fused_moe",
        "kernels.fused_moe.mxfp4:mxfp4_product_kernel",
        (wide, "*u8", "*u8", "*i32", "*i32", "*fp32", wide, "i32", "i32", "i32", "fp32"),
        _constants(tile, activation),
        num_warps=tile.num_warps,
        num_stages=tile.num_stages,
    )


def fp8_product(arch: int, dtype: str, tile: Tile, activation: str) -> Variant:
    wide = f"*{TRITON_TYPES[dtype]}"
    mode = activation_mode(arch, tile.block_m)
    given = "*fp8e4nv" if mode == "rounded" else wide
    return variant(
        "fused_moe",
        f"{_PRODUCTS}:fp8_product_kernel",
        (given, "*fp32", "*fp8e4nv" if has_fp8(arch) else "*u8", "*fp32", "*i32", "*i32", "*fp32",
         given if activation else wide, "*fp32", "i32", "i32", "i32", "i32", "i32", "fp32"),
        {**_constants(tile, activation), "MODE": mode, "ROUND_TO": TRITON_TYPES[dtype]},
        num_warps=tile.num_warps,
        num_stages=tile.num_stages,
    )  # fmt: skip


def _constants(tile: Tile, activation: str) -> dict[str, int | str]:
    return {"BLOCK_M": tile.block_m, "BLOCK_N": tile.block_n, "BLOCK_K": tile.block_k, "GROUP": tile.group,
            "ACTIVATION": activation}  # fmt: skip


def sum_of(dtype: str, places: int) -> Variant:
    wide = f"*{TRITON_TYPES[dtype]}"
    return variant(
        "fused_moe",
        "kernels.fused_moe.triton:sum_kernel",
        (wide, wide, wide, "i32", "i32", "i32"),
        {"PLACES": places, "BLOCK": SUM_BLOCK},
    )
