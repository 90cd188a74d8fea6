"""The closed set of RMS norm kernels: a block covers a row of up to 16384, short rows share a program."""

from __future__ import annotations

from collections.abc import Iterator

from kernels.fp8_linear import GROUP
from kernels.fp8_linear.variants import has_fp8
from kernels.selection import Context
from kernels.variants import TRITON_TYPES, Variant, variant

KERNEL = "kernels.rms_norm.triton:rms_norm_kernel"
UNIT = 8  # row lengths and strides are multiples of it: 16 bytes
BLOCKS = tuple(1 << bits for bits in range(6, 15))  # 64 .. 16384
TILE = 2048  # elements that a program takes at least, as several rows where rows are short


def variants(arch: int, model: Context | None = None) -> Iterator[Variant]:
    """`arch` matters only to what is rounded to FP8."""
    if model is None:
        for dtype in ("bfloat16", "float16"):
            for block in BLOCKS:
                yield from (of(dtype, block, residual) for residual in (False, True))
                if rounds(arch, block):
                    yield of(dtype, block, residual=True, rounded=True)
        return
    block = block_of(model.hidden_size)
    for residual in (False, True):  # without one before sub-layers of residual streams, and in heads for drafts
        yield of(model.dtype, block, residual)
    if model.fp8_blocks is not None and rounds(arch, block):
        yield of(model.dtype, block, residual=True, rounded=True)
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


def rounds(arch: int, block: int) -> bool:
    """Whether there is a kernel that rounds to FP8, too."""
    return has_fp8(arch) and block >= GROUP


def of(dtype: str, block: int, residual: bool, rounded: bool = False) -> Variant:
    pointer = f"*{TRITON_TYPES[dtype]}"
    results = (pointer, "*fp8e4nv", "*fp32") if rounded else (pointer,) * 3
    return variant(
        "rms_norm",
        KERNEL,
        (pointer, pointer, pointer, *results, "i32", "i32", "i32", "i32", "i32", "fp32", "fp32"),
        {"ROWS": rows_of(block), "BLOCK": block, "RESIDUAL": residual, "ROUNDED": rounded},
        num_warps=min(max(block // 512, 4), 32),  # 16 elements a thread
    )
