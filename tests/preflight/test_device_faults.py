"""Faults of the machine's set-up that others report, each as its source tells it: the allocator, and MIG by UUID."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from appliance.hardware import Gpu, Host, Inventory
from appliance.hardware.gpu import GpuProcess
from appliance.home import Home
from appliance.plan.launch import NativePlan
from appliance.preflight import PreflightContext, Report, run
from appliance.preflight.checks import allocator
from appliance.preflight.registry import Check
from appliance.profile.document import apply_patch
from tests.tiny import write_checkpoint

GIB = 1 << 30
PARENT = "GPU-7f57f032-34ab-a064-c37c-7a4f75601cc5"
SLICES = ("MIG-377e0049-554c-540b-93c6-d0976f8426cb", "MIG-f39aa248-6f1b-5769-b119-8d650bb34b27")
WHOLE = "GPU-8c7c9c30-f12f-20bf-e14e-d3c4c965af32"
EXPANDABLE = "expandable_segments:True"
AMONG_OTHERS = "max_split_size_mb:64, expandable_segments: true"


def gpu(uuid: str, name: str, gib: int, parent: str | None = None) -> Gpu:
    size = gib * GIB
    return Gpu(
        uuid=uuid, index=0, name=name, memory_bytes=size, memory_free_bytes=size, compute_capability=(9, 0),
        parent_uuid=parent,
    )  # fmt: skip


def divided_h100s() -> Inventory:
    """vLLM #41848: of two H100s the first is divided into 2g.20gb and 1g.10gb."""
    return Inventory(
        gpus=(
            gpu(SLICES[0], "NVIDIA H100 80GB HBM3 MIG 2g.20gb", 20, PARENT),
            gpu(SLICES[1], "NVIDIA H100 80GB HBM3 MIG 1g.10gb", 10, PARENT),
            gpu(WHOLE, "NVIDIA H100 80GB HBM3", 80),
        ),
        driver_version="580.105.08",
        cuda_version="13.0",
        host=Host(cores=8, memory_bytes=64 * GIB, memory_available_bytes=64 * GIB),
        problem=None,
    )


def look(home: Home, changes: dict[str, Any], environ: dict[str, str], *checks: Check) -> Report:
    environ = {"INGOT_JIT": "1", **environ}  # without a cast
    document = apply_patch({"name": "chat", "model": {"path": "tiny"}}, changes)
    context = PreflightContext(home=home, document=document, environ=environ, inventory=divided_h100s())
    return run(context, checks) if checks else run(context)


@pytest.mark.parametrize("named_by", ["environment", "profile"])
def test_a_mig_slice_is_found_by_its_uuid(home: Home, named_by: str) -> None:
    """vLLM #41848 stopped at int('MIG-...'). Here the slice is found; its name and its memory are what counts; and the
    core is shown that slice alone."""
    write_checkpoint(home.models / "tiny")
    environ = {"CUDA_VISIBLE_DEVICES": SLICES[1]} if named_by == "environment" else {}
    plan = look(home, {} if environ else {"device": SLICES[1]}, environ).plan
    assert isinstance(plan, NativePlan)
    assert plan.device.gpu is not None
    assert plan.device.gpu.name.endswith("MIG 1g.10gb")
    assert plan.memory.available_bytes <= 10 * GIB
    assert plan.environment == {"CUDA_VISIBLE_DEVICES": SLICES[1]}
    assert plan.engine_config().device == "cuda:0"
    assert plan.effective.context.capability == (9, 0)


def test_a_gpu_is_found_by_its_uuid_or_the_beginning_of_it(home: Home) -> None:
    """As CUDA reads the variable; vLLM #41848 again, with a whole GPU."""
    write_checkpoint(home.models / "tiny")
    for listed in (WHOLE, WHOLE[:12]):
        plan = look(home, {}, {"CUDA_VISIBLE_DEVICES": listed}).plan
        assert plan is not None
        assert plan.environment == {"CUDA_VISIBLE_DEVICES": WHOLE}


def test_a_divided_gpu_cannot_be_named_as_a_whole(home: Home) -> None:
    write_checkpoint(home.models / "tiny")
    [finding] = [f for f in look(home, {"device": PARENT}, {}).findings if f.id == "device-missing"]
    assert SLICES[0] in finding.message


ALLOCATOR = Check("allocator", "", allocator.run)


@pytest.mark.parametrize(
    ("changes", "environ", "refused"),
    [
        ({"tensor-parallel-size": 2}, {"PYTORCH_CUDA_ALLOC_CONF": EXPANDABLE}, True),
        ({"tensor-parallel-size": 2}, {"PYTORCH_CUDA_ALLOC_CONF": AMONG_OTHERS}, True),
        ({"tensor-parallel-size": 2}, {"PYTORCH_ALLOC_CONF": EXPANDABLE}, True),
        ({"tensor-parallel-size": 2}, {"PYTORCH_CUDA_ALLOC_CONF": "", "PYTORCH_ALLOC_CONF": EXPANDABLE}, False),
        ({"tensor-parallel-size": 2}, {"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:False"}, False),
        ({}, {"PYTORCH_CUDA_ALLOC_CONF": EXPANDABLE}, False),
        ({"tensor-parallel-size": 2, "enforce-eager": True}, {"PYTORCH_CUDA_ALLOC_CONF": EXPANDABLE}, False),
        ({"tensor-parallel-size": 2, "engine": "vllm", "vllm.extra-args.disable-custom-all-reduce": True},
         {"PYTORCH_CUDA_ALLOC_CONF": EXPANDABLE}, False),
    ],
)  # fmt: skip
def test_expandable_segments_are_refused_where_gpus_share_graphs(
    home: Home, changes: dict[str, Any], environ: dict[str, str], refused: bool
) -> None:
    """vLLM #42609: cudaIpcGetMemHandle takes no memory of that kind. The first variable that is set is what torch
    reads; one GPU, no graphs, or NCCL's own all-reduce are safe."""
    findings = look(home, changes, environ, ALLOCATOR).findings
    assert [finding.id for finding in findings] == (["allocator-breaks-graphs"] if refused else [])
    for finding in findings:
        assert finding.evidence == ("https://github.com/vllm-project/vllm/issues/42609",)
        assert finding.fix is not None
        assert finding.fix.command == f"unset {finding.field}"


def test_expandable_segments_of_the_profile_are_removed_from_it(home: Home) -> None:
    changes = {
        "tensor-parallel-size": 2,
        "engine": "vllm",
        "vllm.environment": {"PYTORCH_CUDA_ALLOC_CONF": EXPANDABLE},
    }
    [finding] = look(home, changes, {}, ALLOCATOR).findings
    assert finding.fix is not None
    assert finding.fix.patch is not None
    assert look(home, changes | finding.fix.patch, {}, ALLOCATOR).findings == []


@pytest.mark.parametrize(
    ("mode", "busy", "said"),
    [
        ("shared", True, None),
        ("exclusive", False, None),
        (None, True, None),
        ("exclusive", True, "python3 (77)"),
        ("prohibited", False, "Prohibited"),
    ],
)
def test_a_gpu_that_others_have_for_themselves_is_reported(home: Home, mode: Any, busy: bool, said: str | None) -> None:
    """vLLM then ends with "CUDA-capable device(s) is/are busy or unavailable", and names no one."""
    others = (GpuProcess(pid=77, name="python3", memory_bytes=GIB),) if busy else ()
    held = msgspec.structs.replace(gpu(WHOLE, "NVIDIA H100", 80), compute_mode=mode, processes=others)
    inventory = msgspec.structs.replace(divided_h100s(), gpus=(held,))
    document = {"schema": 1, "name": "tiny", "model": {"path": "tiny"}}
    context = PreflightContext(home=home, document=document, environ={}, inventory=inventory)
    found = [finding for finding in run(context).findings if finding.id == "gpu-not-shared"]
    assert [said in finding.message for finding in found if said] == ([True] if said else [])
    assert bool(found) == bool(said)
