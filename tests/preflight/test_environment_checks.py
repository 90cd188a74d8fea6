"""The checks of environment, toolchain, caches and folders: what is found, what is not, and which fix is
offered."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from appliance.home import Home
from appliance.packages import Packages
from appliance.preflight import Surroundings
from appliance.protocol import Severity
from tests.preflight.machines import ids, install, look, one, recorded, write

pytestmark = pytest.mark.usefixtures("model")

GPU = "rtx-pro-6000"


# --------------------------------------------------------------------------------------------------------------------
# Variables that contradict the profile
# --------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("environ", "changes", "machine", "found"),
    [
        ({"CUDA_LAUNCH_BLOCKING": "1"}, {}, GPU, Severity.WARNING),
        ({"CUDA_LAUNCH_BLOCKING": "1"}, {}, "none", None),
        ({"CUDA_LAUNCH_BLOCKING": "0"}, {}, GPU, None),
        ({"VLLM_USE_DEEP_GEMM": "1"}, {"engine": "vllm"}, "h200-x8", Severity.ERROR),  # vLLM #41849
        ({"VLLM_USE_DEEP_GEMM": "1"}, {"engine": "vllm"}, GPU, Severity.ERROR),
        ({"VLLM_USE_DEEP_GEMM": "1"}, {}, "h200-x8", None),  # the native engine does not read it
        ({"NCCL_P2P_DISABLE": "1"}, {"engine": "vllm", "tensor-parallel-size": 2}, "h200-x8", Severity.WARNING),
        ({"NCCL_P2P_DISABLE": "1"}, {"engine": "vllm"}, "h200-x8", None),
        ({"VLLM_ATTENTION_BACKEND": "FLASHINFER"}, {"engine": "vllm", "backends.attention": "triton"}, GPU,
         Severity.WARNING),
        ({"VLLM_ATTENTION_BACKEND": "FLASHINFER"}, {"engine": "vllm"}, GPU, None),
        ({"VLLM_PORT": "tcp://10.0.0.7:8000"}, {"engine": "vllm"}, GPU, None),  # not handed on to vLLM
    ],
)  # fmt: skip
def test_variables_that_work_against_the_profile(
    home: Home, program: dict[str, str], around: Surroundings, environ: dict[str, str], changes: dict[str, Any],
    machine: str, found: Severity | None,
) -> None:  # fmt: skip
    report = look(
        home, changes, inventory=recorded(machine), surroundings=around, environ=program | environ,
        only="contradictions",
    )  # fmt: skip
    assert [finding.severity for finding in report.findings] == ([found] if found else [])
    assert all(finding.fix.command == f"unset {finding.field}" for finding in report.findings)


@pytest.mark.parametrize(
    ("environ", "found"),
    [
        ({}, []),
        ({"LANG": "C"}, []),
        ({"LANG": "en_US.utf8"}, []),
        ({"LANG": None}, []),
        ({"LANG": "de_DE.ISO-8859-1"}, ["locale-not-utf8"]),
        ({"LANG": "de_DE.ISO-8859-1", "LC_ALL": "C.UTF-8"}, []),
        ({"LANG": "de_DE.ISO-8859-1", "PYTHONUTF8": "1"}, []),
        ({"PYTHONIOENCODING": "ascii"}, ["locale-not-utf8"]),
        ({"PYTHONIOENCODING": "utf-8:replace"}, []),
    ],
)
def test_the_locale_is_utf8(home: Home, environ: dict[str, Any], found: list[str]) -> None:
    assert ids(look(home, inventory=recorded("none"), environ=environ, only="locale")) == found


# --------------------------------------------------------------------------------------------------------------------
# Compilers
# --------------------------------------------------------------------------------------------------------------------


def remove(around: Surroundings, *places: str) -> None:
    for place in places:
        around.at(place).unlink()


def test_nvcc_that_is_installed_and_not_on_path_is_reported_with_the_way_to_it(
    home: Home, around: Surroundings
) -> None:
    """The B200 guide's case."""
    environ = {"PATH": "/usr/bin"}
    machine: dict[str, Any] = {"inventory": recorded(GPU), "surroundings": around, "environ": environ}
    finding = one(look(home, only="toolchain", **machine))
    assert (finding.id, finding.severity) == ("nvcc-not-on-path", Severity.WARNING)
    assert finding.fix.command == "export CUDA_HOME=/usr/local/cuda PATH=/usr/local/cuda/bin:$PATH"
    with_home = {**machine, "environ": environ | {"CUDA_HOME": "/usr/local/cuda"}}
    assert look(home, only="toolchain", **with_home).findings == []
    remove(around, "/usr/local/cuda/bin/nvcc")
    assert one(look(home, only="toolchain", **machine)).id == "nvcc-missing"


@pytest.mark.parametrize(
    ("gone", "found"),
    [
        ("/usr/bin/gcc", "compiler-missing"),
        ("/usr/bin/ninja", "ninja-missing"),
    ],
)
def test_what_compiles_at_run_time_is_asked_for(home: Home, around: Surroundings, gone: str, found: str) -> None:
    remove(around, gone)
    assert one(look(home, inventory=recorded(GPU), surroundings=around, only="toolchain")).id == found


def test_ninja_beside_vllm_is_not_on_path_by_itself(home: Home, program: dict[str, str], around: Surroundings) -> None:
    remove(around, "/usr/bin/ninja")
    bin_folder = Path(program["INGOT_VLLM"]).parent
    write(around.root, {str(bin_folder / "ninja"): ""})
    report = look(
        home, {"engine": "vllm"}, inventory=recorded(GPU), surroundings=around, environ=program, only="toolchain"
    )
    assert one(report).id == "ninja-not-on-path"
    assert str(bin_folder) in one(report).fix.command


def test_nvcc_among_vllms_packages_is_found_and_so_is_what_needs_none(
    home: Home, program: dict[str, str], around: Surroundings
) -> None:
    """vLLM's own wheels bring a toolkit that is on no PATH."""
    remove(around, "/usr/local/cuda/bin/nvcc")
    [site] = Path(program["INGOT_VLLM"]).parents[1].glob("lib/python3*/site-packages")
    (site / "flashinfer_python-0.7.0.dist-info").mkdir()
    write(site, {"flashinfer/data/aot/sampling/sampling.so": "", "flashinfer/data/aot/norm/norm.so": ""})
    machine: dict[str, Any] = {"inventory": recorded(GPU), "surroundings": around, "environ": program}
    missing = one(look(home, {"engine": "vllm"}, only="toolchain", **machine))
    assert (missing.id, missing.evidence) == ("nvcc-missing", ("compiled beforehand: norm, sampling",))
    write(site, {"nvidia/cu13/bin/nvcc": ""})
    found = one(look(home, {"engine": "vllm"}, only="toolchain", **machine))
    assert (found.id, found.evidence) == ("nvcc-not-on-path", (str(site / "nvidia/cu13/bin/nvcc"),))
    assert f"CUDA_HOME={site}/nvidia/cu13 " in found.fix.command


def test_what_may_not_compile_needs_no_compiler(home: Home, program: dict[str, str], around: Surroundings) -> None:
    remove(around, "/usr/bin/gcc", "/usr/bin/ninja")
    machine: dict[str, Any] = {"inventory": recorded(GPU), "surroundings": around, "environ": program}
    assert look(home, {"engine": "vllm"}, only="toolchain", **machine).findings
    assert look(home, {"engine": "vllm", "jit": "forbid"}, only="toolchain", **machine).findings == []


def test_pythons_headers_are_asked_for(home: Home, program: dict[str, str], around: Surroundings) -> None:
    """As on a DGX Spark: "Python.h: No such file or directory"."""
    machine: dict[str, Any] = {"inventory": recorded("dgx-spark"), "surroundings": around, "environ": program}
    assert look(home, {"engine": "vllm"}, only="toolchain", **machine).findings == []
    remove(around, "/usr/include/python3.12/Python.h")
    finding = one(look(home, {"engine": "vllm"}, only="toolchain", **machine))
    assert (finding.id, finding.fix.command) == ("headers-missing", "apt-get install python3.12-dev")


def test_an_assembler_that_does_not_know_the_gpu_is_reported(home: Home, around: Surroundings) -> None:
    """triton #8539: "Value 'sm_121a' is not defined for option 'gpu-name'"."""
    [folder] = around.packages.folders
    (folder / "triton/backends/nvidia/bin/ptxas-blackwell").unlink()
    machine: dict[str, Any] = {"surroundings": around, "only": "toolchain"}
    assert look(home, inventory=recorded(GPU), **machine).findings == []  # sm_120 it knows
    finding = one(look(home, inventory=recorded("dgx-spark"), **machine))
    assert finding.id == "ptxas-too-old"
    write(around.root, {"/usr/local/cuda/bin/ptxas": ""})
    environ = {"TRITON_PTXAS_PATH": finding.fix.command.partition("=")[2]}
    assert look(home, inventory=recorded("dgx-spark"), environ=environ, **machine).findings == []


def test_an_engine_that_compiles_nothing_needs_no_compiler(home: Home, around: Surroundings) -> None:
    """On the CPU; and from a cast."""
    remove(around, "/usr/bin/gcc", "/usr/bin/ninja", "/usr/local/cuda/bin/nvcc")
    assert look(home, inventory=recorded("none"), surroundings=around, only="toolchain").findings == []
    sealed = {"INGOT_JIT": None, "INGOT_CAST": "/cast"}
    report = look(home, inventory=recorded(GPU), surroundings=around, environ=sealed, only="toolchain")
    assert report.findings == []


# --------------------------------------------------------------------------------------------------------------------
# Folders
# --------------------------------------------------------------------------------------------------------------------


def as_another(around: Surroundings) -> Surroundings:
    return replace(around, uid=4711)


@pytest.mark.skipif(os.geteuid() == 0, reason="root writes everywhere")
def test_a_cache_that_cannot_be_written_is_reported(home: Home, around: Surroundings) -> None:
    around.at("/home/ingot").chmod(0o500)
    report = look(home, inventory=recorded(GPU), surroundings=around, only="caches-writable")
    assert set(ids(report)) == {"cache-unwritable"}


def test_a_home_that_is_no_folder_takes_no_cache(home: Home, around: Surroundings) -> None:
    """As for a user by number in a container, whose HOME is not there: "Permission denied: '/.triton'"."""
    write(around.root, {"/home/nobody": "a file"})
    environ = {"HOME": "/home/nobody"}
    report = look(home, inventory=recorded(GPU), surroundings=around, environ=environ, only="caches-writable")
    assert {finding.field for finding in report.findings} == {"TRITON_CACHE_DIR", "FLASHINFER_WORKSPACE_BASE"}
    for finding in report.findings:
        assert finding.severity is Severity.ERROR
        name, _, value = finding.fix.command.removeprefix("export ").partition("=")
        environ[name] = value
    report = look(home, inventory=recorded(GPU), surroundings=around, environ=environ, only="caches-writable")
    assert report.findings == []


def test_vllm_keeps_its_caches_in_the_state_folder(home: Home, program: dict[str, str], around: Surroundings) -> None:
    """So that a user without a home does no harm."""
    environ = program | {"HOME": "/nowhere", "USER": ""}
    report = look(
        home, {"engine": "vllm"}, inventory=recorded(GPU), surroundings=as_another(around), environ=environ,
        only="caches-writable",
    )  # fmt: skip
    assert report.findings == []


@pytest.mark.parametrize(("device", "severity"), [("cpu", Severity.ERROR), ("auto", Severity.WARNING)])
@pytest.mark.parametrize(("folder", "found"), [("my state", 1), ("it's", 1), ("zustände", 0)])
def test_a_state_folder_that_compilers_cannot_be_given_is_reported(
    home: Home, program: dict[str, str], around: Surroundings, folder: str, found: int, device: str, severity: Severity
) -> None:
    """vLLM 0.32 with torch 2.13 ended with `g++: fatal error: input file '/srv/my' is the same as output file`."""
    at = replace(home, root=home.root / folder)

    def seen(changes: dict[str, Any]) -> list[tuple[str, Severity]]:
        changes = {"engine": "vllm", "device": device, **changes}
        report = look(
            at, changes, inventory=recorded(GPU), surroundings=around, environ=program, only="caches-writable"
        )
        return [(one.id, one.severity) for one in report.findings]

    assert seen({}) == [("cache-path-splits", severity)] * found
    if device == "cpu":
        assert seen({"enforce-eager": True}) == []


def test_entries_of_another_user_are_reported(home: Home, around: Surroundings) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root can give files away")
    write(around.root, {"/home/ingot/.triton/cache/abc/kernel.json": "{}"})
    os.chown(around.at("/home/ingot/.triton/cache/abc"), 4242, 4242)
    report = look(home, inventory=recorded(GPU), surroundings=around, only="caches-writable")
    assert report.findings == []  # root replaces them


def test_stale_kernels_are_found_by_the_version_that_they_name(home: Home, around: Surroundings) -> None:
    cache = "/home/ingot/.triton/cache"
    write(around.root, {f"{cache}/A/__grp__k.json": "{}", f"{cache}/A/k.json": json.dumps({"triton_version": "3.7.1"})})
    assert look(home, inventory=recorded(GPU), surroundings=around, only="stale-caches").findings == []
    write(around.root, {f"{cache}/B/k.json": json.dumps({"triton_version": "3.4.0"}), f"{cache}/C/k.json": "broken"})
    finding = one(look(home, inventory=recorded(GPU), surroundings=around, only="stale-caches"))
    assert (finding.id, finding.severity) == ("cache-stale", Severity.INFO)  # it only takes room
    assert finding.fix.command == f"rm -r {cache}"


def test_flashinfers_kernels_without_a_version_are_a_warning(home: Home, around: Surroundings) -> None:
    cache = "/home/ingot/.cache/flashinfer"
    write(around.root, {f"{cache}/90/cached_ops/x.so": ""})
    finding = one(look(home, inventory=recorded(GPU), surroundings=around, only="stale-caches"))
    assert (finding.severity, finding.value) == (Severity.WARNING, cache)
    write(around.root, {f"{cache}/0.6.13/120a/cached_ops/x.so": ""})
    assert look(home, inventory=recorded(GPU), surroundings=around, only="stale-caches").findings == []


def test_graphs_from_before_vllm_was_installed_are_a_warning(
    home: Home, program: dict[str, str], around: Surroundings
) -> None:
    """vLLM #18851: "failed to get the hash of the compiled graph"."""
    folder = home.root / "caches/vllm/vllm/torch_compile_cache/abc123"
    seen = replace(around, root=Path("/"))
    folder.mkdir(parents=True)
    machine: dict[str, Any] = {"inventory": recorded(GPU), "surroundings": seen, "environ": program}
    assert look(home, {"engine": "vllm"}, only="stale-caches", **machine).findings == []
    os.utime(folder, (1_700_000_000, 1_700_000_000))
    finding = one(look(home, {"engine": "vllm"}, only="stale-caches", **machine))
    assert (finding.severity, finding.fix.command) == (Severity.WARNING, f"rm -r {folder.parent}")
    eager = {"engine": "vllm", "enforce-eager": True}
    assert look(home, eager, only="stale-caches", **machine).findings == []


def test_the_state_folder_is_writable_and_has_room(home: Home, around: Surroundings) -> None:
    assert look(home, inventory=recorded("none"), surroundings=around, only="disk-space").findings == []
    gone = Home.at(home.root / "a-file" / "state", home.models)
    (home.root / "a-file").write_text("")
    finding = one(look(gone, inventory=recorded("none"), surroundings=around, only="disk-space"))
    assert (finding.id, finding.severity) == ("state-folder-unwritable", Severity.ERROR)


def test_a_full_disk_is_reported_before_the_log_is_lost(
    home: Home, around: Surroundings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An error where not even a short log has room."""
    sizes = {"f_blocks": 1, "f_frsize": 4096, "f_files": 1000, "f_favail": 900_000}
    inventory = recorded("none")
    for blocks, severity in ((100, Severity.ERROR), (50_000, Severity.WARNING)):
        status = type("Status", (), {**sizes, "f_bavail": blocks})()
        monkeypatch.setattr(os, "statvfs", lambda _, status=status: status)
        finding = one(look(home, inventory=inventory, surroundings=around, only="disk-space"))
        assert (finding.id, finding.severity) == ("state-folder-full", severity)


@pytest.mark.parametrize(
    ("environ", "found"),
    [
        ({}, []),
        ({"TMPDIR": "/nowhere"}, ["temporary-folder-unusable"]),
        ({"TMPDIR": "/" + "d" * 90}, ["temporary-folder-long"]),
        ({"TMPDIR": "relative"}, []),
    ],
)
def test_the_temporary_folder_can_be_used(
    home: Home, around: Surroundings, environ: dict[str, str], found: list[str]
) -> None:
    write(around.root, {f"/{'d' * 90}/.keep": ""})
    report = look(home, inventory=recorded("none"), surroundings=around, environ=environ, only="temporary-folder")
    assert ids(report) == found


def test_a_machine_without_any_temporary_folder_is_an_error(home: Home, tmp_path: Path) -> None:
    report = look(home, inventory=recorded("none"), surroundings=Surroundings(root=tmp_path), only="temporary-folder")
    assert one(report).severity is Severity.ERROR


def test_selinux_labels_are_looked_at_only_where_they_count(home: Home, around: Surroundings) -> None:
    """Without labels, as here, nothing is reported."""
    write(around.root, {"/sys/fs/selinux/enforce": "1", "/proc/self/attr/current": "system_u:system_r:container_t:s0"})
    assert look(home, inventory=recorded("none"), surroundings=around, only="confinement").findings == []


def test_distributions_are_found_without_importing_them(tmp_path: Path) -> None:
    """Names as pip normalises them; the first folder wins."""
    install(tmp_path / "a", Flash_Attn="1.0")
    install(tmp_path / "b", flash_attn="2.0")
    folders = [tmp_path / name / "lib/python3.12/site-packages" for name in ("a", "b", "none")]
    assert Packages(tuple(folders)).version("flash-attn") == "1.0"


def test_caches_of_vllm_that_another_user_made_are_reported_once(
    home: Home, program: dict[str, str], around: Surroundings
) -> None:
    """One folder, however many caches lie in it; here a file stands in its place."""
    (home.root / "caches").write_text("")
    seen = replace(around, root=Path("/"))
    report = look(
        home, {"engine": "vllm"}, inventory=recorded(GPU), surroundings=seen, environ=program, only="caches-writable"
    )
    assert one(report).fix.command == f"chown -R {os.geteuid()} {home.root}/caches"
