"""Selection: the first backend that can, every verdict kept, and an explicit choice that cannot work is refused."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace

import pytest

from kernels.catalogue import OPS
from kernels.selection import Backend, BackendRefusedError, Context, Fault, Op, choose, choose_all

HOPPER = Context("cuda", (9, 0), "bfloat16", head_dim=128, libraries={"flashinfer": "0.6.13"})
CPU = Context("cpu")
CRASH = Fault("crash", "crashes while graphs are captured", "example/engine#1", lambda c: c.cuda_graphs)
OP = Op(
    "moe",
    (
        Backend(
            "flashinfer", "m:f", devices=("cuda",), min_capability=(9, 0), libraries=("flashinfer",), faults=(CRASH,)
        ),
        Backend("triton", "m:t", devices=("cuda",), min_capability=(8, 0), max_capability=(12, 1), head_dims=(64, 128)),
        Backend("torch", "m:p"),
    ),
    setting="moe",
)


def test_auto_takes_the_first_backend_that_can_and_keeps_all_verdicts():
    choice = choose(OP, CPU)
    assert choice.backend.name == "torch"
    assert [(v.backend, v.usable) for v in choice.verdicts] == [
        ("flashinfer", False),
        ("triton", False),
        ("torch", True),
    ]
    assert choice.verdicts[0].reason == "runs on cuda, and this is the CPU"
    assert choose(OP, HOPPER).backend.name == "flashinfer"


def test_a_known_fault_rules_a_backend_out_where_it_applies_and_names_its_source():
    choice = choose(OP, replace(HOPPER, cuda_graphs=True))
    assert choice.backend.name == "triton"
    assert choice.verdicts[0].reason == "crashes while graphs are captured"
    assert choice.verdicts[0].source == "example/engine#1"


@pytest.mark.parametrize(
    ("context", "backend", "words"),
    [
        (Context("cuda", (8, 0)), "flashinfer", "needs sm_90 or newer, and this is sm_80"),
        (Context("cuda", (13, 0), head_dim=64), "triton", "covers GPUs up to sm_121"),
        (Context("cuda", (9, 0), head_dim=96), "triton", "has no head size 96 (has 64, 128)"),
        (Context("cuda", (9, 0)), "flashinfer", "needs the library flashinfer"),
        (CPU, "deepgemm", "has no backend 'deepgemm' with the native engine (known: auto, flashinfer, triton, torch)"),
    ],
)
def test_an_explicit_choice_that_cannot_work_is_refused_with_the_reason(context, backend, words):
    with pytest.raises(BackendRefusedError) as refused:
        choose(OP, context, backend)
    assert words in str(refused.value)
    assert len(refused.value.verdicts) == 3


def test_auto_with_no_usable_backend_gives_every_reason():
    only_gpu = Op("moe", OP.backends[:2])
    with pytest.raises(BackendRefusedError, match=r"flashinfer runs on cuda.*triton runs on cuda"):
        choose(only_gpu, CPU)


def test_the_catalogue_serves_the_cpu_in_every_dtype_and_the_profile_key_reaches_its_op():
    for dtype in ("float32", "bfloat16", "float16"):
        assert {c.backend.name for c in choose_all(OPS, Context("cpu", dtype=dtype)).values()} == {"torch"}
    with pytest.raises(BackendRefusedError, match="paged_attention has no backend 'nonsense'"):
        choose_all(OPS, CPU, {"attention": "nonsense"})


def test_selection_and_catalogue_import_no_torch():
    code = "import sys, kernels.catalogue; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)
