"""Paged attention: Triton, interpreted, against plain torch."""

from __future__ import annotations

import pytest
import torch

from kernels.cases import error
from kernels.launch import launching_for
from kernels.paged_attention import reference, triton, variants
from kernels.paged_attention.cases import cases

CPU = torch.device("cpu")


def chosen(arch: int, *words: str):
    """The interpreter is slow: the smallest head, and one that is no power of two; the others are left to a GPU."""
    return [case for case in cases(arch) if all(word in case.name for word in words)]


CASES = [case for case in chosen(90, "head_dim=64,", "bfloat16") if "soft cap" not in case.name]
CASES += chosen(90, "head_dim=96,", "float16", "soft cap", "prefill_kernel", "sinks=True")


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_triton_agrees_with_the_reference(case):
    for result, expected in zip(
        case.run(triton.paged_attention, CPU), case.run(reference.paged_attention, CPU), strict=True
    ):
        assert error(result, expected) <= case.tolerance


@pytest.mark.parametrize(
    "case", chosen(80, "head_dim=64,", "float16", "fp8", "soft cap", "sinks=True"), ids=lambda case: case.name
)
def test_an_fp8_cache_is_read_by_integers_where_there_is_no_instruction_for_it(case):
    with launching_for(80):
        (result,) = case.run(triton.paged_attention, CPU)
    (expected,) = case.run(reference.paged_attention, CPU)
    assert error(result, expected) <= case.tolerance


@pytest.mark.parametrize("arch", [80, 86, 89, 90, 100, 103, 120, 121])
def test_each_architecture_has_a_tile_for_every_head_size(arch):
    assert {dict(v.constants).get("HEAD_DIM") for v in variants.variants(arch)} >= set(variants.HEAD_DIMS)
    names = [variant.name for variant in variants.variants(arch)]
    assert len(names) == len(set(names))
