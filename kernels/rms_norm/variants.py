"""The closed set of RMS norm kernels: a block covers a row of up to 16384, short rows share a program."""

from __future__ import annotations

from collections.abc import Iterator

from kernels.selection import Context
from kernels.variants import TRITON_TYPES, Variant, variant

KERNEL = "kernels.rms_norm.triton:rms_norm_kernel"
UNIT = 8  # row lengths and strides are multiples of it: 16 bytes
BLOCKS = tuple(1 << bits for bits in range(6, 15))  # 64 .. 16384
TILE = 2048  # elements that a program takes at least, as several rows where rows are short


def variants(arch: int, model: Context | None = None) -> Iterator[Variant]:
    """`arch` does not matter: the kernel only moves bytes."""
    if model is None:
        yield from (of(dtype, block, residual) for dtype in ("bfloat16", "float16") for block in BLOCKS
                    for residual in (False, True))  # fmt: skip
        return
    yield of(model.dtype, block_of(model.hidden_size), residual=True)
    if model.qk_norm == "all":
        for heads in {model.num_heads, model.num_kv_heads}:
            yield of(model.dtype, block_of(heads * model.head_dim), residual=False)
    if model.latent_query_rank:
        yield of(model.dtype, block_of(model.latent_query_rank), residual=False)


def block_of(size: int) -> int:
    """The smallest block that covers a row."""
    for block in BLOCKS:
        if block >= size:
            return block
    raise ValueError(f"RMS norm supports rows of at most {BLOCKS[-1]:,}, but this one has {size:,}")


def rows_of(block: int) -> int:
    """How many rows a program takes."""
    return max(TILE // block, 1)


def of(dtype: str, block: int, residual: bool) -> Variant:
    pointer = f"*{TRITON_TYPES[dtype]}"
    return variant(
        "rms_norm",
        KERNEL,
        (pointer, pointer, pointer, pointer, "i32", "i32", "i32", "i32", "i32", "fp32", "fp32"),
        {"ROWS": rows_of(block), "BLOCK": block, "RESIDUAL": residual},
        num_warps=min(max(block // 512, 4), 32),  # 16 elements a thread
    )
