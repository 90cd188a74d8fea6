"""Backends are chosen and memory is planned once, for the engine's machine: the checks and their fixes, `ingot explain`
and the core's configuration have the same."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec import structs

from appliance.explain.report import report
from appliance.hardware.engine_machine import Machine
from appliance.home import Home
from appliance.plan.launch import NativePlan
from appliance.preflight import PreflightContext, run
from appliance.preflight.engine_subjects import subject_of
from appliance.profile.document import apply_patch, load
from kernels.catalogue import OPS
from kernels.context import CastSummary
from kernels.paged_attention import modules
from kernels.paged_attention.workspace import Step, workspace_bytes
from kernels.selection import explain
from tests.preflight.machines import CHAT, ENVIRON, recorded
from tests.tiny import write_checkpoint

LONG = 131072


@pytest.fixture
def document(home: Home) -> dict[str, Any]:
    write_checkpoint(home.models / "tiny", dtype="bfloat16", head_dim=64, max_position_embeddings=LONG)
    return apply_patch(CHAT, {"max-num-seqs": 4, "enforce-eager": True})


@pytest.fixture
def h100(home: Home, document: dict[str, Any]) -> Machine:
    """A recorded one, whose engine has FlashInfer and is sealed to a cast that holds what this model needs."""
    machine = Machine(
        inventory=recorded("h100-mig-one-of-two"), environ=ENVIRON, libraries={"triton": "3.7", "flashinfer": "0.6.13"}
    )
    context = report(load(document), home, machine=machine).context
    needs = [one.needs for wanted in ("auto", "triton") for one in explain(OPS, context, {"attention": wanted})]
    variants = frozenset(name for need in needs for name in need.variants)
    held = frozenset(name for need in needs for name in need.modules)
    assert held, "attention has modules of FlashInfer's"
    return structs.replace(machine, cast=CastSummary(90, variants, held))


def asked(home: Home, document: dict[str, Any], machine: Machine) -> PreflightContext:
    """By a console whose own process has neither the GPU nor FlashInfer nor a cast."""
    return PreflightContext(
        home=home, document=document, environ=machine.environ, inventory=machine.inventory, machine=machine
    )


def test_an_h100_with_flashinfer_in_its_cast_is_planned_with_flashinfer(home, document, h100):
    """Its workspace is FlashInfer's and not that of Triton's kernels, in the checks and in what is sent to the core."""
    found = run(asked(home, document, h100))
    assert isinstance(found.plan, NativePlan)
    assert found.effective.context.cast == h100.cast
    config = found.plan.engine_config()
    assert config.backends["paged_attention"] == "flashinfer"
    assert config.num_blocks == found.memory.num_blocks
    counted = found.memory.workspace.attention
    assert counted == modules.workspace_bytes(found.effective.context)
    assert counted != workspace_bytes("triton", found.effective.context, Step(2048, 4, LONG))
    explained = report(load(document), home, machine=h100)
    assert {row.op: row.chosen for row in explained.rows} == config.backends
    assert explained.memory == found.memory


def test_a_change_is_weighed_with_the_backends_that_would_run_it(home, document, h100):
    """What a fix proposes is planned as the profile itself is: before, with whatever this process had installed."""
    subject = subject_of(asked(home, document, h100))
    assert subject.memory_of(subject.profile) == subject.effective.memory
    longer = load(apply_patch(document, {"max-num-seqs": 8}))
    assert subject.memory_of(longer).workspace.attention == subject.effective.memory.workspace.attention


def test_a_cast_without_flashinfer_is_planned_with_what_it_holds(home, document, h100):
    """Also where a fix moves the model to a device that is no GPU: nothing is sealed there."""
    bare = structs.replace(h100, cast=CastSummary(90, h100.cast.variants))
    found = run(asked(home, document, bare))
    assert isinstance(found.plan, NativePlan)
    assert found.plan.engine_config().backends["paged_attention"] == "triton"
    subject = subject_of(asked(home, document, bare))
    on_the_cpu = load(apply_patch(document, {"device": "cpu"}))
    assert subject.memory_of(on_the_cpu).kind == "host"


@pytest.mark.parametrize("broken", [{"max-model-len": LONG * 2}, {"kv-cache-memory-bytes": "1 MiB"}])
def test_memory_is_reported_although_a_finding_stands_against_the_launch(home, document, h100, broken):
    found = run(asked(home, apply_patch(document, broken), h100))
    assert found.plan is None
    assert found.effective.memory == found.memory
    assert found.device.gpu in h100.inventory.gpus


def test_nothing_is_reported_of_a_model_that_is_not_there(home, h100):
    found = run(asked(home, apply_patch(CHAT, {"model.path": "gone"}), h100))
    assert (found.plan, found.effective, found.memory) == (None, None, None)
