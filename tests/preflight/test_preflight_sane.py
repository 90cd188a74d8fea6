"""No false alarms: a sane profile on a sane machine has no warning and no error; and a check is never slow, and never
falls over whatever the machine looks like."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from appliance import hardware
from appliance.home import Home
from appliance.packages import Packages
from appliance.preflight import PreflightContext, Surroundings, run
from appliance.preflight.registry import CHECKS
from appliance.profile.active import bundled_profile
from appliance.profile.vllm_options import VARIABLES
from appliance.protocol import Severity
from tests.preflight.machines import NAMES, install, look, recorded, sane, vllm
from tests.running import processor_s
from tests.tiny import FP8, write_checkpoint

# Machines on which something is wrong: what hardware says of itself, and what only a check finds.
TROUBLED = {name: found[0].id for name in NAMES if (found := recorded(name).problems)} | {
    "processes-refused": "memory-held",
    "mig-in-container": "memory-held",
    "old-driver": "driver-too-old",
}
SANE = [name for name in NAMES if name not in TROUBLED]
ENGINES = ("native", "vllm")
# What belongs to the CUDA of a recorded driver: an image for each.
CUDA = {"a100-mig": "12.4", "h100-mig-one-of-two": "12.8", "mig-in-container": "12.2"}


def serious(report: Any) -> list[str]:
    return [f"{f.severity}: {f.message}" for f in report.findings if f.severity is not Severity.INFO]


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("name", SANE)
def test_a_sane_profile_on_a_sane_machine_has_no_warning(home: Home, tmp_path: Path, name: str, engine: str) -> None:
    write_checkpoint(home.models / "tiny", dtype="bfloat16", head_dim=64)
    cuda = CUDA.get(name, "13.0")
    inventory = recorded(name)
    on_cpu = not inventory.gpus
    python = {"torch": f"2.13.0+cu{cuda.replace('.', '')}", "cuda": cuda}
    version = "0.32.0+cpu" if on_cpu else "0.32.0"
    program = vllm(tmp_path / "vllm", version=version)
    install(tmp_path / "vllm", **({"torch": "2.13.0+cpu", "cuda": None} if on_cpu else python))
    around = sane(tmp_path / "root", install(tmp_path / "native", **python))
    report = look(
        home, {"engine": engine}, inventory=inventory, surroundings=around, environ={"INGOT_VLLM": str(program)}
    )
    assert serious(report) == []
    assert report.plan is not None
    assert len(report.checks) > 30


@pytest.mark.parametrize("name", TROUBLED)
def test_what_is_wrong_with_a_machine_is_said_once(home: Home, tmp_path: Path, name: str) -> None:
    """The old driver also carries a GPU of a generation that CUDA 13 has dropped: the driver is what is said first."""
    write_checkpoint(home.models / "tiny", dtype="float16", head_dim=64)
    cuda = CUDA.get(name, "13.0")
    packages = install(tmp_path / "native", torch=f"2.13.0+cu{cuda.replace('.', '')}", cuda=cuda)
    report = look(home, inventory=recorded(name), surroundings=sane(tmp_path / "root", packages))
    found = [finding for finding in report.findings if finding.severity is not Severity.INFO]
    assert [f.id for f in found if f.id != "gpu-without-kernels"] == [TROUBLED[name]]
    assert all(finding.fix and finding.fix.text for finding in found)


def test_this_machine_with_the_bundled_model_has_no_warning(home: Home) -> None:
    """As it is: its own files, limits, libraries and clock. On a GPU, kernels may be compiled."""
    context = PreflightContext(
        home=home,
        document=bundled_profile(),
        environ={**os.environ, "INGOT_JIT": "1"},
        inventory=hardware.inventory(home=home),
        surroundings=Surroundings.here(),
    )
    started = processor_s()
    report = run(context)
    seconds = processor_s() - started
    assert serious(report) == []
    assert seconds < 2
    assert {check.id for check in report.checks} == {check.id for check in CHECKS if "native" in check.engines}


def test_all_checks_together_take_less_than_two_seconds_also_of_vllm(home: Home) -> None:
    """With a vLLM whose source is as large as the real one's; its parts are read once."""
    named = os.environ.get("INGOT_VLLM")
    if not named:
        pytest.skip("INGOT_VLLM names no vLLM")
    write_checkpoint(home.models / "tiny", dtype="bfloat16", quantization_config=FP8)
    context = PreflightContext(
        home=home,
        document={"name": "chat", "model": {"path": "tiny"}, "engine": "vllm", "device": "cpu"},
        environ={**os.environ, "INGOT_VLLM": named},
        inventory=hardware.inventory(home=home),
        surroundings=Surroundings.here(),
    )
    started = processor_s()
    run(context)
    assert processor_s() - started < 2


# --------------------------------------------------------------------------------------------------------------------
# Hostile surroundings
# --------------------------------------------------------------------------------------------------------------------

READ = (
    "/proc/self/mounts", "/proc/sys/vm/overcommit_memory", "/proc/sys/vm/max_map_count", "/proc/meminfo", "/etc/passwd",
    "/sys/fs/cgroup/pids.max", "/sys/fs/cgroup/pids.current", "/sys/fs/selinux/enforce", "/proc/self/attr/current",
    "/etc/ld.so.conf.d/00-compat.conf",
)  # fmt: skip
SET = (
    "PATH", "HOME", "LANG", "LC_ALL", "TMPDIR", "CC", "CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER", "LD_LIBRARY_PATH",
    "TRITON_CACHE_DIR", "FLASHINFER_WORKSPACE_BASE", "XDG_CACHE_HOME", "TRITON_PTXAS_PATH", "CUDA_HOME", "INGOT_VLLM",
    "PYTORCH_CUDA_ALLOC_CONF", "PYTHONIOENCODING", "NCCL_P2P_DISABEL", "VLLM_", "_", "INGOT_CAST", "USER",
    *(variable.name for variable in VARIABLES),
)  # fmt: skip
ODD = st.one_of(
    # What the system can hand over: no NUL, and bytes that are no UTF-8 as Python shows them.
    st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=40),
    st.sampled_from(["", "/", "-1", "0,0", "GPU-", "MIG-,", "9" * 30, "/dev/null", "../..", "\udcff", "a:b,:", "."]),
)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    files=st.dictionaries(st.sampled_from(READ), st.binary(max_size=80), max_size=6),
    environ=st.dictionaries(st.sampled_from(SET), ODD, max_size=10),
    name=st.sampled_from(NAMES),
    engine=st.sampled_from(ENGINES),
    metadata=st.text(max_size=60),
)
def test_no_surroundings_make_a_check_fall_over(
    tmp_path: Path, home: Home, files: dict[str, bytes], environ: dict[str, str], name: str, engine: str, metadata: str
) -> None:
    """Whatever stands in the files and variables that are read: findings, each with a fix; never an exception."""
    if not (home.models / "tiny").exists():
        write_checkpoint(home.models / "tiny", dtype="bfloat16", head_dim=64)
        install(tmp_path / "native", deep_gemm="2.0", flashinfer_python="0.6.13")
        vllm(tmp_path / "vllm")
    folder = tmp_path / "native/lib/python3.12/site-packages"
    (folder / "torch-2.13.0.dist-info/METADATA").write_text(metadata, errors="replace")
    (folder / "torch/version.py").write_text(f"cuda = '{metadata}'", errors="replace")
    root = tmp_path / "root"
    around = sane(root, Packages((folder, tmp_path / "nowhere")))
    for place, content in files.items():
        (root / place.lstrip("/")).parent.mkdir(parents=True, exist_ok=True)
        (root / place.lstrip("/")).write_bytes(content)
    given = {"INGOT_VLLM": str(tmp_path / "vllm/bin/vllm")} | environ
    changes = {"engine": engine, "tensor-parallel-size": 2 if engine == "vllm" else 1}
    report = look(home, changes, inventory=recorded(name), surroundings=around, environ=given)
    for finding in report.findings:
        assert finding.fix is not None, finding
    msgspec.json.encode(report.findings)
    for place in files:
        (root / place.lstrip("/")).unlink()


def test_files_that_may_not_be_read_are_passed_over(home: Home, tmp_path: Path) -> None:
    """A root folder without anything in it; folders where files are expected."""
    write_checkpoint(home.models / "tiny")
    root = tmp_path / "root"
    for place in READ:
        (root / place.lstrip("/")).mkdir(parents=True)
    around = Surroundings(root=root)
    report = look(home, inventory=recorded("none"), surroundings=around)
    assert {finding.id for finding in report.findings} <= {"temporary-folder-missing"}
