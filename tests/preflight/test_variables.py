"""The check of environment variables: names that are nearly right, values that cannot be, and secrets in either."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from appliance.home import Home
from appliance.preflight import Surroundings
from appliance.preflight.checks.variables import NCCL, OURS, SHARED, misspelt
from appliance.protocol import Severity
from tests.preflight.machines import look, one, recorded

pytestmark = pytest.mark.usefixtures("model")

GPU = "rtx-pro-6000"


@pytest.mark.parametrize(
    ("name", "right"),
    [
        ("NCCL_P2P_DISABEL", "NCCL_P2P_DISABLE"),
        ("NCLL_DEBUG", "NCCL_DEBUG"),
        ("NCCL_SOCKET_IFNAMES", "NCCL_SOCKET_IFNAME"),
        ("CUDA_VISIBLE_DEVICE", "CUDA_VISIBLE_DEVICES"),
        ("INGOT_CASTS", "INGOT_CAST"),
        ("PYTORCH_CUDA_ALOC_CONF", "PYTORCH_CUDA_ALLOC_CONF"),
        ("NCCL_DEBUG", None),
        ("TORCH_NCCL_ASYNC_ERROR_HANDLING", None),
        ("CUDA_PATH", None),
        ("NVIDIA_DRIVER_CAPABILITIES", None),
        ("NCCL_IB_TC", None),
        ("CUDA_VERSION", None),
        ("HF_TOKEN", None),
        ("CUDA_HOME_DIR", None),
        ("TRITON_HOME", None),
        ("HOME", None),
        ("NV_CUDA_LIB_VERSION", None),
        ("NVIDIA_REQUIRE_CUDA", None),
        ("NV_LIBNCCL_PACKAGE", None),
        ("NCCL_VERSION", None),
        ("TORCH_CUDA_ARCH_LIST", None),
        ("INGOT_GID", None),
        ("INGOT_UID", None),
        ("INGOT_DEVICE", None),
        ("INGOT_PORT", None),
    ],
)
def test_a_name_that_is_nearly_a_known_one_is_a_slip(name: str, right: str | None) -> None:
    """And a name that others use is none: these stand in the environments of common images."""
    found = dict(misspelt({name: "1"}, [*OURS, *SHARED, *NCCL]))
    assert found == ({name: right} if right else {})


def test_no_variable_of_ours_is_taken_for_a_slip() -> None:
    """Of all that stand in code, compose files and Dockerfile."""
    root = Path(__file__).parents[2]
    files = [*root.glob("compose*.yaml"), root / "Dockerfile", root / "Makefile"]
    files += [*root.glob("appliance/**/*.py"), *root.glob("console/**/*.py"), *root.glob("kernels/**/*.py")]
    names = {name for file in files for name in re.findall(r"INGOT_[A-Z]+(?:_[A-Z]+)*", file.read_text())}
    assert len(names) > 15
    assert list(misspelt(dict.fromkeys(names, "1"), [*OURS, *SHARED, *NCCL])) == []


def test_slips_of_vllms_names_are_reported_where_vllm_is_to_run(
    home: Home, program: dict[str, str], around: Surroundings
) -> None:
    environ = program | {"VLLM_LOGING_LEVEL": "DEBUG", "VLLM_PLUGIN_OF_OURS": "1"}
    machine: dict[str, Any] = {"inventory": recorded(GPU), "surroundings": around, "environ": environ}
    assert look(home, only="variables", **machine).findings == []
    finding = look(home, {"engine": "vllm"}, only="variables", **machine).findings[-1]
    assert (finding.id, finding.severity) == ("variable-misspelt", Severity.WARNING)
    assert finding.fix.command == "unset VLLM_LOGING_LEVEL; export VLLM_LOGGING_LEVEL=DEBUG"


@pytest.mark.parametrize(
    ("value", "told"),
    [
        (f"https://admin:{'p4' * 45}@host:8000", "https://<removed: password in an address>@host:8000"),
        (f"eyJhbGci{'Oi' * 20}.{'x1' * 60}.{'y2' * 20}", "<removed: web token>"),
        ("v" * 200, "v" * 80),
    ],
)
def test_a_secret_goes_before_a_long_value_is_cut(home: Home, value: str, told: str) -> None:
    """What is left of one that was cut has no longer its form."""
    machine: dict[str, Any] = {"inventory": recorded(GPU), "environ": {"INGOT_ENGINE_URI": value}}
    finding = one(look(home, only="variables", **machine))
    assert (finding.id, finding.value, finding.fix.command) == ("variable-misspelt", told, "unset INGOT_ENGINE_URI")


def test_what_this_vllm_no_longer_reads_is_removed_from_the_profile(
    home: Home, program: dict[str, str], around: Surroundings
) -> None:
    changes: dict[str, Any] = {"engine": "vllm", "vllm.environment": {"VLLM_CPU_OMP_THREADS_BIND": "0-3"}}
    machine: dict[str, Any] = {"inventory": recorded(GPU), "surroundings": around, "environ": program}
    finding = one(look(home, changes, only="variables", **machine))
    assert finding.id == "variable-without-effect"
    patch = finding.fix.patch
    assert patch == {"vllm.environment.VLLM_CPU_OMP_THREADS_BIND": None}
    assert look(home, {"engine": "vllm"}, only="variables", **machine).findings == []


def test_a_value_from_outside_that_cannot_be_is_reported(
    home: Home, program: dict[str, str], around: Surroundings
) -> None:
    machine: dict[str, Any] = {"inventory": recorded("h200-x8"), "surroundings": around, "only": "variables"}
    environ = program | {"VLLM_LOGGING_LEVEL": "LOUD"}
    assert one(look(home, {"engine": "vllm"}, environ=environ, **machine)).id == "variable-value"
    environ = program | {"VLLM_LOGGING_LEVEL": "warn"}
    assert look(home, {"engine": "vllm"}, environ=environ, **machine).findings == []


@pytest.mark.parametrize(
    ("name", "value", "command"),
    [
        ("VLLM_WORKER_MULTIPROC_METHOD", "forkserver", "export VLLM_WORKER_MULTIPROC_METHOD=fork"),
        ("VLLM_KV_CACHE_LAYOUT", "nhd", "export VLLM_KV_CACHE_LAYOUT=NHD"),  # which no profile may set
        ("VLLM_KV_CACHE_LAYOUT", "blocks", "unset VLLM_KV_CACHE_LAYOUT"),
    ],
)
def test_a_value_with_which_the_installed_vllm_would_not_start_is_refused(
    home: Home, program: dict[str, str], around: Surroundings, name: str, value: str, command: str
) -> None:
    machine: dict[str, Any] = {"inventory": recorded(GPU), "surroundings": around, "environ": program | {name: value}}
    finding = one(look(home, {"engine": "vllm"}, only="variables", **machine))
    assert (finding.id, finding.severity, finding.field) == ("variable-value", Severity.ERROR, name)
    assert finding.fix.command == command
    assert look(home, only="variables", **machine).findings == []


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({}, None),
        ({"device": "cpu"}, "VLLM_DEEP_GEMM_WARMUP"),
        ({"device": "GPU-12345678-1234-1234-1234-123456789abc"}, "VLLM_DEEP_GEMM_WARMUP"),
    ],
)
def test_a_value_that_the_launch_puts_another_over_is_not_judged(
    home: Home, program: dict[str, str], around: Surroundings, changes: dict[str, Any], field: str | None
) -> None:
    """This model has no FP8 layer: on a GPU its launch skips DeepGEMM's warm-up. Of a GPU that is not there nothing is
    known."""
    envs = next(Path(program["INGOT_VLLM"]).parents[1].rglob("vllm/envs.py"))
    text = envs.read_text().replace("VLLM_KV_CACHE_LAYOUT", "VLLM_DEEP_GEMM_WARMUP")
    envs.write_text(text.replace('["NHD", "HND"]', '["skip", "full", "relax"]'))
    environ = program | {"VLLM_DEEP_GEMM_WARMUP": "off"}
    machine: dict[str, Any] = {"inventory": recorded(GPU), "surroundings": around, "environ": environ}
    found = look(home, {"engine": "vllm"} | changes, only="variables", **machine).findings
    assert [finding.field for finding in found if finding.id == "variable-value"] == ([field] if field else [])


def test_a_profile_may_say_what_an_older_vllm_does_not_take(
    home: Home, program: dict[str, str], around: Surroundings
) -> None:
    """And is told before that one starts."""
    envs = next(Path(program["INGOT_VLLM"]).parents[1].rglob("vllm/envs.py"))
    envs.write_text(envs.read_text().replace('["spawn", "fork"]', '["fork"]'))
    changes: dict[str, Any] = {"engine": "vllm", "vllm.environment": {"VLLM_WORKER_MULTIPROC_METHOD": "spawn"}}
    machine: dict[str, Any] = {"inventory": recorded(GPU), "surroundings": around, "environ": program}
    finding = one(look(home, changes, only="variables", **machine))
    field = "vllm.environment.VLLM_WORKER_MULTIPROC_METHOD"
    assert (finding.severity, finding.field, finding.fix.patch) == (Severity.ERROR, field, {field: None})


def test_a_variable_that_this_vllm_does_not_read_is_reported(
    home: Home, program: dict[str, str], around: Surroundings
) -> None:
    """Also one that is like no other, as of older versions; what Kubernetes sets by itself is nobody's mistake."""
    of_kubernetes = {"VLLM_SERVICE_HOST": "10.0.0.1", "VLLM_PORT_8000_TCP_PORT": "8000"}
    environ = program | of_kubernetes | {"VLLM_USE_V2": "1"}
    machine: dict[str, Any] = {"inventory": recorded(GPU), "surroundings": around, "environ": environ}
    finding = one(look(home, {"engine": "vllm"}, only="variables", **machine))
    assert (finding.id, finding.field, finding.fix.command) == (
        "variable-without-effect", "VLLM_USE_V2", "unset VLLM_USE_V2",
    )  # fmt: skip
    assert look(home, only="variables", **machine).findings == []
