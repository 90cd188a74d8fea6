"""Every architecture: its cases launch what is declared, and its kernels compile.

With INGOT_ALL_ARCHITECTURES=1 (`make test-architectures`, for the night) that is every variant of all eight; otherwise
a few of those that no other test casts.
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from itertools import islice
from pathlib import Path

import pytest

from kernels.cast import plan
from kernels.cast.architectures import ARCHITECTURES
from kernels.cast.build import build
from kernels.selection import Op
from kernels.variants import Variant
from tests.cast.casting import order
from tests.cast.conftest import ARCHITECTURES as CAST_ANYWAY
from tests.cast.conftest import Workshop
from tests.cast.spills import unexpected

ALL = os.environ.get("INGOT_ALL_ARCHITECTURES") == "1"
CASES_OF = tuple(ARCHITECTURES) if ALL else ("sm_80", "sm_90")
# What differs between architectures most.
OPS = ("rotary_cache", "paged_attention", "mla_attention", "delta_rule", "fp8_linear", "fused_moe")


def some(variants: Sequence[Variant]) -> list[Variant]:
    return [variant for op in OPS for variant in islice((v for v in variants if v.op == op), 1)]


@pytest.mark.timeout(900 if ALL else 180)
def test_the_cases_of_every_op_launch_exactly_what_it_declares(workshop: Workshop):
    """So that `ingot verify` proves every kernel of a cast, and a cast has every kernel that is launched."""
    process = workshop.start("tests.cast.case_launches", *CASES_OF)
    out, errors = process.communicate()
    assert process.returncode == 0, errors
    for architecture, ops in json.loads(out).items():
        assert len(ops) > 8
        for op, found in ops.items():
            assert found == {"missing": [], "undeclared": []}, f"{op} on {architecture}"


@pytest.mark.timeout(7200 if ALL else 180)
@pytest.mark.parametrize("name", [name for name in ARCHITECTURES if ALL or name not in CAST_ANYWAY])
def test_its_kernels_compile(tmp_path: Path, name: str):
    variants = plan.triton_variants(ARCHITECTURES[name].number)
    chosen = variants if ALL else some(variants)
    jobs = len(os.sched_getaffinity(0)) if ALL else 1  # each imports PyTorch
    outcome = build(order(tmp_path / "cast", chosen, name, jobs), lambda _: None)
    assert outcome.failed == {}
    assert len(outcome.manifest.variants) == len(chosen) > 0
    assert unexpected(outcome.manifest) == []


def test_every_op_with_kernels_has_cases_and_a_reference():
    """What `ingot verify` needs of it."""
    ops: dict[str, Op] = {op.name: op for name in ARCHITECTURES.values() for op, _ in plan.triton_backends(name.number)}
    for name, op in ops.items():
        assert Path(f"kernels/{name}/cases.py").exists()
        assert "torch" in [backend.name for backend in op.backends]
