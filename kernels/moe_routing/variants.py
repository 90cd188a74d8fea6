"""The closed set of routing kernels: a block covers the experts of a token."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product

from kernels.context import Context
from kernels.variants import TRITON_TYPES, Variant, variant

KERNEL = "kernels.moe_routing.triton:moe_routing_kernel"
SORTED_KERNEL = "kernels.moe_routing.triton:sorted_routing_kernel"
BLOCKS = (32, 128, 256, 512)  # experts
MAX_EXPERTS = BLOCKS[-1]
MAX_TOP_K = 16
MAX_GROUPS = 32
TILE, ROWS = 1024, 8  # scores and tokens that a program takes at most
# By blocks of experts: up to how many tokens one program routes and sorts. With more of either, two launches that many
# programs share are as fast or faster (H100).
SORTED_ROWS: dict[int, tuple[int, ...]] = {32: (8,), 128: (8,), 256: (), 512: ()}
_NUMBERS = (*("i32",) * 7, "fp32")
DTYPES = ("bfloat16", "float16", "float32")
SCORINGS = ("softmax", "sigmoid")
SOFTPLUS = "sqrtsoftplus"  # has a kernel of its own


def variants(arch: int, model: Context | None = None) -> Iterator[Variant]:
    """`arch` does not matter. A model's router may give its logits in the model's dtype or in float32."""
    if model is None:
        forms = product(DTYPES, BLOCKS, SCORINGS, (False, True))
        yield from (softplus(dtype, block, by_table) for dtype in DTYPES for block in BLOCKS
                    for by_table in (False, True))  # fmt: skip
    elif model.expert_scoring == SOFTPLUS:
        for dtype in dict.fromkeys((model.dtype, "float32")):
            for by_table in (False, True) if model.hash_routing else (False,):
                yield softplus(dtype, block_of(model.num_experts), by_table)
        return
    elif model.num_experts:
        dtypes = dict.fromkeys((model.dtype, "float32"))
        forms = product(dtypes, (block_of(model.num_experts),), (model.expert_scoring,), (model.num_expert_groups > 1,))
    else:
        return
    for dtype, block, scoring, grouped in forms:
        yield of(dtype, block, scoring, grouped)
        yield from (of_sorted(dtype, block, scoring, grouped, rows) for rows in SORTED_ROWS[block])


def block_of(num_experts: int) -> int:
    """The smallest block that covers the experts. Selection ensures that the largest is
    enough."""
    return next(block for block in BLOCKS if block >= num_experts)


def rows_of(block: int) -> int:
    """How many tokens a program takes."""
    return min(TILE // block, ROWS)


def of(dtype: str, block: int, scoring: str, grouped: bool) -> Variant:
    return variant(
        "moe_routing",
        KERNEL,
        (f"*{TRITON_TYPES[dtype]}", "*fp32", "*fp32", "*i32", *_NUMBERS),
        {"ROWS": rows_of(block), "BLOCK": block, "PLACES": MAX_TOP_K, "GROUPS": MAX_GROUPS,
         "SIGMOID": scoring == "sigmoid", "GROUPED": grouped},
        num_warps=1,  # so that the best of a token is found without waiting for another warp
    )  # fmt: skip


def of_sorted(dtype: str, block: int, scoring: str, grouped: bool, rows: int) -> Variant:
    return variant(
        "moe_routing",
        SORTED_KERNEL,
        (f"*{TRITON_TYPES[dtype]}", "*fp32", "*fp32", "*i32", "*i32", "*i32", *_NUMBERS, "i32"),
        {"ROWS": rows, "BLOCK": block, "GROUPS": MAX_GROUPS, "SIGMOID": scoring == "sigmoid", "GROUPED": grouped},
        num_warps=min(max(rows * block // 64, 4), 16),
    )


def softplus(dtype: str, block: int, by_table: bool) -> Variant:
    """Of the best experts, or of those that a table has chosen."""
    return variant(
        "moe_routing",
        "kernels.moe_routing.softplus:softplus_routing_kernel",
        (f"*{TRITON_TYPES[dtype]}", "*fp32", "*i64" if by_table else "*i32", "*fp32", "*i32", *("i32",) * 5, "fp32"),
        {"ROWS": 1, "BLOCK": block, "PLACES": MAX_TOP_K, "BY_TABLE": by_table},
        num_warps=1,
    )
