"""The closed set of these kernels: by what is compressed into what, by dtype, and by whether the GPU has
float8_e4m3fn."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, NamedTuple

from kernels.index_cache.variants import DIM as KEY_DIM
from kernels.index_cache.variants import codes_of
from kernels.packed_entries.variants import DIM, ROPE, pages_of
from kernels.selection import Context
from kernels.variants import TRITON_TYPES, Variant, variant

DTYPES: Final = ("bfloat16", "float16")
TOKENS: Final = 8  # that a program takes at a time
COPIED: Final = 1024  # numbers of a token that a program of `keep_kernel` copies
_MODULE: Final = "kernels.compressor.triton"


class Form(NamedTuple):
    """Of published models: entries of 4 tokens and of 128, and an indexer's keys of 4, in 8 bits or in MXFP4."""

    ratio: int
    overlap: bool
    keys: bool
    mxfp4: bool = False


FORMS: Final = (Form(4, True, False), Form(128, False, False), Form(4, True, True), Form(4, True, True, True))


def variants(arch: int, model: Context | None = None) -> Iterator[Variant]:
    for dtype in DTYPES if model is None else (model.dtype,):
        for form in forms(model):
            yield from (entries(arch, dtype, form, decodes) for decodes in (True, False))
    yield keep()


def forms(model: Context | None) -> Iterator[Form]:
    for form in FORMS:
        if model is not None and form.keys and form.mxfp4 != model.index_mxfp4:
            continue
        if model is None or (model.index_heads if form.overlap else model.least_ratio):
            yield form


def entries(arch: int, dtype: str, form: Form, decodes: bool) -> Variant:
    pages = ("*u8" if form.mxfp4 else codes_of(arch), "*fp32", "*fp32") if form.keys else pages_of(arch)
    return variant(
        "compressor",
        f"{_MODULE}:entries_kernel",
        ("*fp32", "*fp32", f"*{TRITON_TYPES[dtype]}", "*fp32", "*fp32", *pages, "*i64", "*i32", "*i32", "*i32",
         *("i32",) * 7, "fp32"),
        {"DIM": KEY_DIM if form.keys else DIM, "ROPE": ROPE, "RATIO": form.ratio, "OVERLAP": form.overlap,
         "KEYS": form.keys, "MXFP4": form.mxfp4, "TOKENS": TOKENS, "DECODES": decodes},
        num_warps=8 if form.keys else 4,
    )  # fmt: skip


def keep() -> Variant:
    return variant(
        "compressor",
        f"{_MODULE}:keep_kernel",
        ("*fp32", "*fp32", "*fp32", "*i64", "*i32", "*i32", *("i32",) * 6),
        {"BLOCK": COPIED},
    )
