"""Before the weights are read it is known whether the cast fits: this GPU, these versions, this model."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any

import msgspec
import pytest
from click.testing import CliRunner

from appliance.hardware import Gpu, Host, Inventory
from appliance.plan.launch import NativePlan
from appliance.preflight import PreflightContext, Report, run
from appliance.profile.document import apply_patch
from appliance.protocol import Finding, Severity
from appliance.serving.serve_command import serve
from kernels.cast import check, manifest
from tests.cast.conftest import Workshop
from tests.tiny import ALIGNED, write_checkpoint

GIB = 1 << 30


def machine(capability: tuple[int, int] | None = (9, 0)) -> Inventory:
    gpus = () if capability is None else (
        Gpu(uuid="GPU-1", index=0, name="Card", memory_bytes=24 * GIB, memory_free_bytes=24 * GIB,
            compute_capability=capability),
    )  # fmt: skip
    host = Host(cores=4, memory_bytes=16 * GIB, memory_available_bytes=16 * GIB)
    return Inventory(gpus=gpus, driver_version=None, cuda_version=None, host=host, problem=None)


def look(
    workshop: Workshop,
    environ: dict[str, str],
    capability: tuple[int, int] | None = (9, 0),
    changes: dict[str, Any] | None = None,
) -> Report:
    document = apply_patch({"name": "small", "model": {"path": "small"}}, changes or {})
    context = PreflightContext(home=workshop.home, document=document, environ=environ, inventory=machine(capability))
    return run(context)


def only(report: Report) -> Finding:
    (finding,) = [finding for finding in report.findings if finding.severity is Severity.ERROR]
    assert report.plan is None
    return finding


@pytest.fixture
def copy(casts: dict[str, Path], tmp_path: Path) -> Path:
    return Path(shutil.copytree(casts["sm_90"], tmp_path / "cast"))


def rewrite(cast: Path, **changes: Any) -> dict[str, str]:
    """The environment that names `cast`, whose manifest now says otherwise."""
    manifest.write(msgspec.structs.replace(check.read(cast), **changes), cast)
    return {"INGOT_CAST": str(cast)}


def test_a_cast_that_fits_seals_the_engine(workshop: Workshop, casts: dict[str, Path]):
    """The core gets its path; the op's backends are those of the cast."""
    report = look(workshop, {"INGOT_CAST": str(casts["sm_90"])})
    assert not [finding for finding in report.findings if finding.severity is Severity.ERROR]
    assert isinstance(report.plan, NativePlan)
    assert report.plan.sealed is True
    assert report.plan.engine_config().cast == str(casts["sm_90"])
    chosen = {explained.op.name: explained.chosen.name for explained in report.plan.effective.selection}
    assert chosen["rms_norm"] == chosen["paged_attention"] == "triton"


def test_the_cpu_has_nothing_to_seal(workshop: Workshop, tmp_path: Path):
    """Where the profile asks for the CPU, whatever INGOT_CAST says: an image carries it wherever it runs."""
    environ = {"INGOT_CAST": str(tmp_path / "nowhere")}
    report = look(workshop, environ, capability=None, changes={"device": "cpu"})
    assert isinstance(report.plan, NativePlan)
    assert report.plan.sealed is None
    assert report.plan.engine_config().cast is None


def test_a_sealed_engine_without_a_gpu_is_refused(workshop: Workshop, tmp_path: Path):
    """The image of a GPU on a machine without a driver says so, rather than serve slowly; the fix asks for the CPU."""
    finding = only(look(workshop, {"INGOT_CAST": str(tmp_path / "cast")}, capability=None))
    assert finding.id == "sealed-without-gpu"
    assert "driver" in finding.message
    assert finding.fix.patch == {"device": "cpu"}


def test_a_gpu_without_a_cast_is_refused(workshop: Workshop):
    """With the command that casts, and the way of a developer."""
    finding = only(look(workshop, {}))
    assert finding.id == "cast-missing"
    folder = workshop.home.root / "casts" / "sm_90"
    assert finding.fix.command == f"ingot cast --arch sm_90 --out {folder}"
    assert f"INGOT_CAST={folder}" in finding.fix.text
    assert "--jit" in finding.fix.text
    old = look(workshop, {}, capability=(7, 5), changes={"dtype": "float16"})  # nothing could be cast for it
    assert [(finding.id, finding.fix.command) for finding in old.findings] == [("gpu-without-kernels", None)]


def test_a_developers_engine_may_compile_and_says_so(workshop: Workshop, casts: dict[str, Path]):
    report = look(workshop, {"INGOT_JIT": "1", "INGOT_CAST": str(casts["sm_90"])})
    assert [finding.id for finding in report.findings] == ["unsealed"]
    assert isinstance(report.plan, NativePlan)
    assert report.plan.sealed is False
    assert report.plan.engine_config().cast is None


def test_the_flag_is_that_setting(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("INGOT_JIT", "")
    CliRunner().invoke(serve, ["--jit", "--host", "256.0.0.1"])  # ends where it cannot listen
    assert os.environ["INGOT_JIT"] == "1"


def test_a_cast_of_another_architecture_is_refused(workshop: Workshop, casts: dict[str, Path]):
    finding = only(look(workshop, {"INGOT_CAST": str(casts["sm_120"])}))
    assert finding.id == "cast-architecture"
    assert {"sm_120", "sm_90."} <= set(finding.message.replace(",", "").split())
    assert finding.fix.command.startswith("ingot cast --arch sm_90 --out ")


@pytest.mark.parametrize(
    ("name", "value", "id"),
    [
        ("triton", "1.2.3", "cast-triton"),
        ("triton_build", "0" * 64, "cast-triton"),
        ("python", "cpython-39-x86_64-linux-gnu", "cast-python"),
    ],
)
def test_a_cast_of_other_versions_is_refused(workshop: Workshop, copy: Path, name: str, value: str, id: str):
    """Triton's version, its build, and Python's."""
    versions = msgspec.structs.replace(check.read(copy).versions, **{name: value})
    finding = only(look(workshop, rewrite(copy, versions=versions)))
    assert finding.id == id


def test_another_environment_is_refused(workshop: Workshop, casts: dict[str, Path]):
    finding = only(look(workshop, {"INGOT_CAST": str(casts["sm_90"]), "TRITON_DEBUG": "1"}))
    assert (finding.id, finding.fix.command) == ("cast-environment", "unset TRITON_DEBUG")


def test_a_damaged_cast_is_refused(workshop: Workshop, copy: Path):
    """A file that is cut short or gone, a manifest that was edited, that is of a newer Ingot, or that is not there."""
    kernels = sorted(copy.rglob("*.cubin"))
    kernels[0].write_bytes(kernels[0].read_bytes()[:-1])
    kernels[1].unlink()
    environ = {"INGOT_CAST": str(copy)}
    finding = only(look(workshop, environ))
    assert finding.id == "cast-changed"
    assert all(str(kernel.relative_to(copy)) in finding.message for kernel in kernels[:2])
    path = copy / manifest.NAME
    written = path.read_bytes()
    for content, id in (
        (written.replace(b"sm_90", b"sm_80"), "cast-edited"),
        (written.replace(b'"format": 1', b'"format": 7'), "cast-too-new"),
        (written[:100], "cast-unreadable"),
    ):
        path.write_bytes(content)
        assert only(look(workshop, environ)).id == id
    path.unlink()
    assert only(look(workshop, environ)).id == "cast-absent"


def test_a_kernel_that_this_model_lacks_is_named(workshop: Workshop, casts: dict[str, Path]):
    """How many, the first of them, and what would cast them: never plain torch in silence."""
    write_checkpoint(workshop.home.models / "wide", dtype="bfloat16", **ALIGNED | {"hidden_size": 4096})
    finding = only(look(workshop, {"INGOT_CAST": str(casts["sm_90"])}, changes={"model.path": "wide"}))
    assert finding.id == "cast-variant-missing"
    assert "rms_norm rms_norm_kernel[*bf16," in finding.message
    assert "BLOCK=4096" in finding.message
    assert "small" in finding.message
    assert finding.fix.command == f"ingot cast --arch sm_90 --out {casts['sm_90']}"
