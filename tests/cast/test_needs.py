"""A model's kernels are asked of a cast as selection chooses: the next best backend serves, plain torch does not."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from kernels.cast import check
from kernels.cast.manifest import CastVariant, Manifest, Versions
from kernels.catalogue import PAGED_ATTENTION
from kernels.context import Context
from kernels.selection import explain

VERSIONS = Versions(ingot="0", triton="3", triton_build="", python="", ptxas="", libc="")
MODEL = Context(
    "cuda", (9, 0), dtype="bfloat16", head_dim=128, num_heads=32, num_kv_heads=8, libraries={"flashinfer": "0.6.13"}
)
NEEDS = {
    backend.name: backend.needs_of_a_cast(MODEL)
    for backend in PAGED_ATTENTION.of("native")
    if backend.name in ("triton", "flashinfer")
}
VARIANTS, MODULES = NEEDS["triton"].variants, NEEDS["flashinfer"].modules


def judged(
    variants: tuple[str, ...], modules: tuple[str, ...], requested: str = "auto"
) -> tuple[str | None, list[str]]:
    """The attention that is chosen with such a cast, and what is found wrong with it."""
    cast = Manifest(
        architecture="sm_90",
        versions=VERSIONS,
        variants=tuple(CastVariant(op="paged_attention", name=name, keys=(), shared=0) for name in variants),
        flashinfer=modules,
        files=(),
        built=0.0,
        seconds=0.0,
    )
    context = replace(MODEL, cast=cast.summary())
    selection = explain([PAGED_ATTENTION], context, {"attention": requested})
    wrong = [error.message for error in check.against_needs(cast, Path("cast"), selection, context)]
    return selection[0].chosen.name if selection[0].chosen else None, wrong


@pytest.mark.parametrize(
    ("variants", "modules", "chosen"),
    [(VARIANTS, MODULES, "flashinfer"), ((), MODULES, "flashinfer"), (VARIANTS, (), "triton")],
)
def test_one_backend_that_is_cast_is_enough(variants: tuple[str, ...], modules: tuple[str, ...], chosen: str):
    assert judged(variants, modules) == (chosen, [])


def test_kernels_are_asked_for_where_only_torch_is_left():
    """Those of Triton: a cast may be made without FlashInfer's modules."""
    chosen, (wrong,) = judged(VARIANTS[1:], MODULES[1:])
    assert chosen == "torch"
    assert f"lacks 1 of the {len(VARIANTS)} kernels" in wrong
    assert f"paged_attention {VARIANTS[0]}." in wrong


def test_a_backend_that_was_asked_for_is_the_one_whose_kernels_are():
    assert judged(VARIANTS, MODULES[1:], "flashinfer")[0] is None
    assert MODULES[0] in judged(VARIANTS, MODULES[1:], "flashinfer")[1][0]
    assert judged((), (), "torch") == ("torch", [])
