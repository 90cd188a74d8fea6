"""GPUs that are not alike, where several share a model."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from msgspec import structs

from appliance.hardware import Inventory
from appliance.home import Home
from appliance.protocol import Severity
from tests.preflight.machines import GIB, look, one, recorded, vllm
from tests.tiny import write_checkpoint

MIG = "MIG-a2345678-1234-1234-1234-123456789abc"
SHARED: dict[str, Any] = {"tensor-parallel-size": 2}


@pytest.fixture(autouse=True)
def _model(home: Home) -> None:
    write_checkpoint(home.models / "tiny", dtype="bfloat16", head_dim=64)


def mixed(**changes: Any) -> Inventory:
    inventory = recorded("rtx-pro-6000-x2")
    return structs.replace(inventory, gpus=(inventory.gpus[0], structs.replace(inventory.gpus[1], **changes)))


@pytest.mark.parametrize(
    ("engine", "changes", "severity"),
    [
        ("native", {"name": "NVIDIA L40S", "compute_capability": (8, 9)}, Severity.ERROR),
        ("native", {"name": "NVIDIA GeForce RTX 5090"}, Severity.WARNING),
        ("vllm", {"name": "NVIDIA L40S", "compute_capability": (8, 9)}, Severity.WARNING),
    ],
)
def test_ranks_must_compute_alike(home: Home, tmp_path: Path, engine: str, changes: Any, severity: Severity) -> None:
    """Each rank of the native engine routes by itself."""
    machine: dict[str, Any] = {"inventory": mixed(**changes), "environ": {"INGOT_VLLM": str(vllm(tmp_path / "vllm"))}}
    finding = one(look(home, SHARED | {"engine": engine}, only="parallelism", **machine))
    assert (finding.id, finding.severity) == ("gpus-differ", severity)
    assert finding.fix is not None
    assert finding.fix.patch == {"tensor-parallel-size": None}


def test_a_slice_that_is_named_cannot_share(home: Home) -> None:
    """However many whole GPUs there are."""
    inventory = recorded("h200-x8")
    part = structs.replace(inventory.gpus[0], uuid=MIG, parent_uuid=inventory.gpus[0].uuid)
    inventory = structs.replace(inventory, gpus=(part, *inventory.gpus[1:]))
    finding = one(look(home, SHARED | {"device": part.uuid}, inventory=inventory, only="parallelism"))
    assert (finding.id, finding.severity, finding.field) == ("slice-cannot-share", Severity.ERROR, "device")
    assert finding.fix is not None
    alone = {"device": part.uuid, **(finding.fix.patch or {})}
    assert look(home, alone, inventory=inventory, only="parallelism").findings == []


def test_auto_leaves_out_the_odd_gpu(home: Home) -> None:
    """Also where it has the most free memory; the plan and its GPUs follow."""
    inventory = recorded("h200-x8")
    odd = structs.replace(inventory.gpus[0], name="NVIDIA L40S", compute_capability=(8, 9), memory_free_bytes=139 * GIB)
    others = tuple(structs.replace(gpu, memory_free_bytes=100 * GIB) for gpu in inventory.gpus[1:3])
    report = look(home, SHARED, inventory=structs.replace(inventory, gpus=(odd, *others)))
    assert report.plan is not None
    assert {gpu.uuid for gpu in report.plan.taken} == {gpu.uuid for gpu in others}
