"""Backends in preflight: every value says where it came from, and what cannot work is refused with reason, source and
fix."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from appliance.explain.report import machine_with
from appliance.hardware import Host, Inventory
from appliance.hardware.known import known_gpu
from appliance.home import Home
from appliance.plan import effective
from appliance.plan.effective import Effective, workers
from appliance.plan.launch import NativePlan
from appliance.preflight import PreflightContext, Report, run
from appliance.preflight.checks import backends
from appliance.profile.document import apply_patch, load
from appliance.protocol import Severity
from kernels.catalogue import OPS
from kernels.cpu.library import usable
from kernels.selection import Backend, BackendRefusedError, Context, Op, choose
from tests.tiny import write_checkpoint

GIB = 1 << 30
HOST = Host(cores=4, memory_bytes=16 * GIB, memory_available_bytes=16 * GIB)
CPU = Inventory(gpus=(), driver_version=None, cuda_version=None, host=HOST, problem=None)


@pytest.fixture(autouse=True)
def _model(home: Home) -> None:
    write_checkpoint(home.models / "tiny", dtype="bfloat16", head_dim=64)


def look(home: Home, changes: dict[str, Any] | None = None, inventory: Inventory = CPU) -> Report:
    document = apply_patch({"name": "chat", "model": {"path": "tiny"}}, changes or {})
    return run(PreflightContext(home=home, document=document, environ={"INGOT_JIT": "1"}, inventory=inventory))


def resolved(home: Home, changes: dict[str, Any] | None = None, inventory: Inventory = CPU) -> Effective:
    plan = look(home, changes, inventory).plan
    assert plan is not None
    return plan.effective


def test_a_backend_that_was_chosen_says_what_was_passed_over(home: Home) -> None:
    value = resolved(home)["backends.attention"]
    assert (value.value, value.source) == ("cpp" if usable() else "torch", "engine")
    assert "triton" in value.why
    on_gpu = resolved(home, inventory=machine_with(known_gpu("RTX PRO 6000"), HOST))["backends.attention"]
    assert (on_gpu.value, on_gpu.source) == ("triton", "engine")


def test_a_backend_that_the_profile_names_is_the_profiles(home: Home) -> None:
    value = resolved(home, {"backends.attention": "torch"})["backends.attention"]
    assert (value.value, value.source) == ("torch", "profile")


def test_a_site_that_the_model_lacks_is_refused_with_the_nearest(home: Home) -> None:
    (site,) = (place.key for found in resolved(home).selection for place in found.places if found.op.name == "sampling")
    wrong = site[:-1] + "7"
    (finding,) = (
        found for found in look(home, {f"site-backends.{wrong}": "torch"}).findings if found.id == "site-unknown"
    )
    assert finding.severity is Severity.ERROR
    assert finding.field == f"site-backends.{wrong}"
    assert finding.fix is not None
    assert site in finding.fix.text
    assert finding.fix.patch == {f"site-backends.{wrong}": None}


def test_a_backend_that_cannot_run_at_the_site_it_is_named_for_is_refused(home: Home) -> None:
    (site,) = (place.key for found in resolved(home).selection for place in found.places if found.op.name == "sampling")
    (finding,) = (
        found for found in look(home, {f"site-backends.{site}": "triton"}).findings if found.id == "backend-refused"
    )
    assert finding.field == f"site-backends.{site}"
    assert site in finding.message
    assert finding.fix is not None
    assert finding.fix.patch == {f"site-backends.{site}": None}


def test_what_a_site_gets_is_what_the_core_binds(home: Home) -> None:
    plan = look(home, {"site-backends.sampling@512": "torch"}).plan
    assert isinstance(plan, NativePlan)
    config = plan.engine_config()
    assert config.places.keys() >= {"sampling@512"}
    assert {place.partition("@")[0] for place in config.places} == config.backends.keys()


def test_a_setting_that_decides_nothing_says_why_and_is_a_warning_where_it_is_set(home: Home) -> None:
    values = resolved(home)
    assert "mixture of experts" in values["backends.moe"].why
    assert "block-scaled FP8" in values["backends.linear"].why
    assert "gated delta layers" in values["backends.gdn-prefill"].why
    assert "sparse latent attention" in values["backends.sparse-mla"].why
    [finding] = look(home, {"backends.gdn-prefill": "triton"}).findings
    assert (finding.severity, finding.field) == (Severity.WARNING, "backends.gdn-prefill")
    assert finding.fix is not None
    assert finding.fix.patch == {"backends.gdn-prefill": None}


def test_a_choice_that_cannot_work_is_refused_before_the_weights_with_every_reason(home: Home) -> None:
    """Also on a GPU; the fix leads to a profile that could start."""
    for inventory, reason in (
        (CPU, "CPU"),
        (machine_with(known_gpu("T4"), HOST), "sm_80"),
    ):
        report = look(home, {"backends.attention": "triton", "dtype": "float16"}, inventory)
        [finding] = [found for found in report.findings if found.severity is Severity.ERROR]
        assert (finding.id, finding.field, finding.value) == ("backend-refused", "backends.attention", "triton")
        assert reason in finding.message
        assert "torch: can run" in finding.evidence
        assert finding.fix is not None
        assert finding.fix.patch is not None
        assert look(home, finding.fix.patch | {"dtype": "float16"}, inventory).plan is not None


def test_the_backend_of_another_engine_is_unknown(home: Home) -> None:
    [finding] = look(home, {"backends.attention": "flash-attn"}).findings
    assert "The native engine has no backend 'flash-attn' of paged_attention (known: auto, " in finding.message


def test_the_way_out_that_a_fault_has_is_part_of_the_fix() -> None:
    """vLLM #39288, as preflight words it."""
    moe = next(op for op in OPS if op.name == "fused_moe")
    context = Context(
        "cuda", (9, 0), "bfloat16", cuda_graphs=True, engine="vllm", num_experts=8, libraries={"flashinfer": "0.6.13"}
    )
    with pytest.raises(BackendRefusedError) as refused:
        choose(moe, context, "flashinfer-cutlass")
    finding = backends.as_finding(refused.value)
    assert finding.fix is not None
    assert "`enforce-eager: true`" in finding.fix.text
    assert any("https://github.com/vllm-project/vllm/issues/39288" in line for line in finding.evidence)
    with pytest.raises(BackendRefusedError) as alone:
        choose(replace(moe, backends=moe.of("vllm")[:1]), replace(context, capability=(8, 0)), "flashinfer-trtllm")
    fix = backends.as_finding(alone.value).fix
    assert fix is not None
    assert fix.patch is None


def test_an_op_that_nothing_serves_is_an_error_though_no_setting_chooses_it(
    home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    nothing = Op("rms_norm", (Backend("triton", "m:f", devices=("cuda",)),))
    monkeypatch.setattr(effective, "OPS", (nothing,))
    report = look(home)
    [finding] = [found for found in report.findings if found.severity is Severity.ERROR]
    assert "rms_norm" in finding.message
    assert "triton" in finding.message
    assert finding.field is None
    assert finding.fix.patch is None


@pytest.mark.parametrize(
    ("changes", "count"),
    [
        ({}, 1),
        ({"tensor-parallel-size": 4}, 4),
        ({"engine": "vllm", "tensor-parallel-size": 4, "vllm.extra-args.pipeline-parallel-size": 2}, 8),
        ({"engine": "vllm", "vllm.extra-args.data-parallel-size": 2}, 2),
        ({"vllm.extra-args.data-parallel-size": 2}, 1),
    ],
)
def test_workers_are_all_that_run_one_model_together(changes: dict[str, Any], count: int) -> None:
    assert workers(load(apply_patch({"name": "chat", "model": {"path": "tiny"}}, changes))) == count
