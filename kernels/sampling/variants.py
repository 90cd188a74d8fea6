"""The closed set of sampling kernels: logits are always float32, and every size is a number at run time."""

from __future__ import annotations

from collections.abc import Iterator

from kernels.selection import Context
from kernels.variants import Variant, variant

_MODULE = "kernels.sampling.triton:"
CHUNK = 4096  # logits that one program takes
MAX_CHUNKS = 128  # of a row, so that 524288 tokens are the largest vocabulary
LEVELS = 16  # thresholds at which `level_kernel` takes the measure of a row
ROOM = 8192  # tokens that are listed before the search for a threshold; where more remain it goes over the whole row
EDITS = 256  # edits that one program makes

MAX_VOCAB = CHUNK * MAX_CHUNKS


def variants(arch: int, model: Context | None = None) -> Iterator[Variant]:
    """`arch` and `model` do not matter."""
    yield edit()
    yield restrict()
    yield from (best(samples) for samples in (False, True))
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


def best(samples: bool) -> Variant:
    """`samples`: some row is not greedy."""
    return variant(
        "sampling",
        f"{_MODULE}best_kernel",
        ("*fp32", "*fp32", "*fp32", "*i32", "*i64", "*u8", "*fp32", "i32"),
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
