"""The closed set of sampling kernels: every size is a number at run time. Logits are float32; those of a step in which
every row is greedy may be as they were computed."""

from __future__ import annotations

from collections.abc import Iterator

from kernels.selection import Context
from kernels.variants import TRITON_TYPES, Variant, variant

_MODULE = "kernels.sampling.triton:"
DTYPES = ("bfloat16", "float16")  # of logits, beside float32
CHUNK = 4096  # logits that one program takes
MAX_CHUNKS = 128  # of a row, so that 524288 tokens are the largest vocabulary
LEVELS = 16  # thresholds at which `level_kernel` takes the measure of a row
ROOM = 8192  # tokens that are listed before the search for a threshold; where more remain it goes over the whole row
EDITS = 256  # edits that one program makes

MAX_VOCAB = CHUNK * MAX_CHUNKS


def variants(arch: int, model: Context | None = None) -> Iterator[Variant]:
    """`arch` does not matter, and of `model` only the dtype."""
    yield edit()
    yield restrict()
    yield from (best(samples, "float32") for samples in (False, True))
    dtypes = DTYPES if model is None else (model.dtype,)
    yield from (best(False, dtype) for dtype in dtypes if dtype != "float32")
    yield level()
    yield sample()


def edit() -> Variant:
    return variant(
        "sampling", f"{_MODULE}edit_kernel", ("*fp32", "*fp32", "*i32", "i32", "i32", "i32"), {"BLOCK": EDITS}
    )


def restrict() -> Variant:
    return variant(
        "sampling", f"{_MODULE}restrict_kernel", ("*fp32", "*i32", "i32", "i32"), {"CHUNK": CHUNK}, num_warps=8
    )


def best(samples: bool, dtype: str) -> Variant:
    """`samples`: some row is not greedy. `dtype` is that of the logits."""
    return variant(
        "sampling",
        f"{_MODULE}best_kernel",
        (f"*{TRITON_TYPES[dtype]}", "*fp32", "*fp32", "*i32", "*i64", "*u8", "*fp32", "i32"),
        {"SAMPLES": samples, "CHUNK": CHUNK, "MAX_CHUNKS": MAX_CHUNKS},
        num_warps=8,
    )


def level() -> Variant:
    return variant(
        "sampling",
        f"{_MODULE}level_kernel",
        ("*fp32", "*fp32", "*fp32", "*fp32", "*i32", "*i32", "*fp32", "*fp32", "*i32", "*i32", "i32"),
        {"LEVELS": LEVELS, "CHUNK": CHUNK, "MAX_CHUNKS": MAX_CHUNKS},
        num_warps=8,
    )


def sample() -> Variant:
    return variant(
        "sampling",
        f"{_MODULE}sample_kernel",
        ("*fp32", "*fp32", "*fp32", "*fp32", "*fp32", "*i32", "*i32", "*fp32", "*i32", "*i32", "*i64", "i32"),
        {"ROOM": ROOM, "CHUNK": CHUNK},
        num_warps=8,
    )
