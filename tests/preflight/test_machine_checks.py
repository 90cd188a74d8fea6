"""The checks of driver, libraries, devices and memory, each with a machine on which it finds something and one, as like
that as can be, on which it does not; a fix that is a patch leads to a profile without the finding."""

from __future__ import annotations

import json
import os
import re
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import psutil
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs

from appliance.hardware import Inventory
from appliance.hardware.gpu import GpuProcess
from appliance.home import Home
from appliance.packages import Packages
from appliance.plan.launch import NativePlan
from appliance.preflight import Surroundings
from appliance.preflight.elf import needed_glibc
from appliance.protocol import Finding, Severity
from tests.preflight.machines import GIB, ids, install, look, one, recorded, sane, vllm, write
from tests.tiny import FP8, write_checkpoint

LLAMA: dict[str, Any] = {"dtype": "bfloat16", "head_dim": 64}


@pytest.fixture(autouse=True)
def _model(home: Home) -> None:
    write_checkpoint(home.models / "tiny", **LLAMA)


def configure(home: Home, **config: Any) -> None:
    path = home.models / "tiny" / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | config))


def is_fixed(home: Home, finding: Finding, changes: dict[str, Any], only: str, **machine: Any) -> None:
    """The patch takes the finding away."""
    assert finding.fix is not None
    assert finding.fix.patch is not None, finding.fix.text
    assert look(home, changes | finding.fix.patch, only=only, **machine).findings == []


# --------------------------------------------------------------------------------------------------------------------
# Driver and libraries
# --------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("machine", "torch", "cuda", "found"),
    [
        ("rtx-pro-6000", "2.13.0+cu130", "13.0", []),
        ("h100-mig-one-of-two", "2.13.0+cu130", "13.0", ["driver-too-old"]),  # driver 570 runs CUDA 12.8
        ("h100-mig-one-of-two", "2.13.0+cu129", "12.9", []),  # newer than the driver's, of the same major version
        ("mig-in-container", "2.13.0+cu128", "12.8", []),  # driver 535 and CUDA 12.2: minor versions are compatible
        ("h200-x8", "2.13.0+cu128", "12.8", []),  # an older CUDA on a newer driver
        ("old-driver", "2.13.0+cu126", "12.6", ["driver-too-old"]),
        ("none", "2.13.0+cu130", "13.0", []),  # torch with CUDA runs on the CPU as well
        ("rtx-pro-6000", "2.13.0+cpu", None, ["torch-without-cuda"]),
    ],
)
def test_the_driver_is_held_against_the_cuda_of_torch(
    home: Home, tmp_path: Path, machine: str, torch: str, cuda: str | None, found: list[str]
) -> None:
    around = sane(tmp_path, install(tmp_path / "python", torch=torch, cuda=cuda))
    report = look(home, inventory=recorded(machine), surroundings=around, only="driver")
    assert ids(report) == found
    for finding in report.findings:
        assert finding.severity is Severity.ERROR
        if finding.fix and finding.fix.patch:
            is_fixed(home, finding, {}, "driver", inventory=recorded(machine), surroundings=around)


def test_a_package_for_forward_compatibility_counts_where_it_works(home: Home, tmp_path: Path) -> None:
    """On a data-centre GPU; on a GeForce NVIDIA's own library refuses."""
    write(tmp_path, {"/usr/local/cuda/compat/libcuda.so.1": ""})
    around = sane(tmp_path, install(tmp_path / "python"))
    environ = {"LD_LIBRARY_PATH": "/usr/lib:/usr/local/cuda/compat"}
    old = recorded("h100-mig-one-of-two")
    assert ids(look(home, inventory=old, surroundings=around, environ=environ, only="driver")) == []
    gpus = tuple(structs.replace(gpu, name="NVIDIA GeForce RTX 4090") for gpu in old.gpus)
    geforce = structs.replace(old, gpus=gpus)
    [finding] = look(home, inventory=geforce, surroundings=around, environ=environ, only="driver").findings
    assert any("compat does not help" in line for line in finding.evidence)


@pytest.mark.parametrize(
    ("machine", "cuda", "found"),
    [("rtx-pro-6000", "12.6", True), ("rtx-pro-6000", "12.8", False), ("dgx-spark", "12.8", False),
     ("old-driver", "13.0", True), ("old-driver", "12.6", False), ("h200-x8", "12.6", False),
     ("a100-mig", "13.0", False)],
)  # fmt: skip
def test_torch_has_code_for_the_gpu(home: Home, tmp_path: Path, machine: str, cuda: str, found: bool) -> None:
    """CUDA 12.8 is the first that knows Blackwell, CUDA 13 the first that has forgotten Volta; a GPU runs the code of
    another of its generation, as GB10 (sm_121) that of sm_120."""
    around = sane(tmp_path, install(tmp_path / "python", torch=f"2.9.0+cu{cuda.replace('.', '')}", cuda=cuda))
    report = look(home, inventory=recorded(machine), surroundings=around, only="gpu-code")
    assert ids(report) == (["gpu-not-covered"] if found else [])


def test_torchs_cuda_is_read_from_its_files(tmp_path: Path) -> None:
    """From version.py, which also a wheel without a suffix has; else from the version."""
    assert install(tmp_path / "a", torch="2.13.0", cuda="13.0").torch.cuda == (13, 0)
    assert install(tmp_path / "b", torch="2.13.0+cpu", cuda=None).torch.cuda is None
    folder = install(tmp_path / "c").folders[0]
    (folder / "torch/version.py").unlink()
    assert Packages((folder,)).torch.told is False
    (folder / "torch-2.13.0.dist-info").rename(folder / "torch-2.13.0+cu128.dist-info")
    assert Packages((folder,)).torch.cuda == (12, 8)


@pytest.mark.parametrize(("built_for", "severity"), [("2.12.0", Severity.ERROR), ("2.13.0", None)])
def test_libraries_that_were_built_for_another_torch_are_reported(
    home: Home, tmp_path: Path, built_for: str, severity: Severity | None
) -> None:
    """As in vLLM #18673: "undefined symbol"."""
    program = vllm(tmp_path / "vllm")
    metadata = next((tmp_path / "vllm").rglob("vllm-0.32.0.dist-info")) / "METADATA"
    metadata.write_text(f"Name: vllm\nVersion: 0.32.0\nRequires-Dist: torch=={built_for}\n")
    report = look(
        home, {"engine": "vllm"}, inventory=recorded("h200-x8"), surroundings=sane(tmp_path / "root"),
        environ={"INGOT_VLLM": str(program)}, only="libraries",
    )  # fmt: skip
    assert [finding.severity for finding in report.findings] == ([severity] if severity else [])


def test_a_wheel_for_a_newer_c_library_and_a_deepgemm_without_its_bindings_are_reported(
    home: Home, tmp_path: Path
) -> None:
    packages = install(tmp_path / "python", deep_gemm="2.0")
    (packages.folders[0] / "torch-2.13.0.dist-info/WHEEL").write_text("Tag: cp312-cp312-manylinux_2_99_x86_64\n")
    around = sane(tmp_path / "root", packages)
    report = look(home, inventory=recorded("h200-x8"), surroundings=around, only="libraries")
    assert ids(report) == ["library-missing", "glibc-too-old"]


@pytest.mark.parametrize(
    ("index_topk", "brings", "found"), [(2048, False, True), (2048, True, False), (None, False, False)]
)
def test_a_model_with_an_indexer_needs_a_vllm_with_deepgemm(
    home: Home, tmp_path: Path, index_topk: int | None, brings: bool, found: bool
) -> None:
    """vLLM 0.24 and 0.32 on a GPU: "Sparse Attention Indexer CUDA op requires DeepGEMM"."""
    program = vllm(tmp_path / "vllm")
    [packages] = (tmp_path / "vllm").glob("lib/python3.12/site-packages")
    if brings:
        (packages / "vllm/third_party/deep_gemm").mkdir(parents=True)
    config = home.models / "tiny" / "config.json"
    config.write_text(json.dumps(json.loads(config.read_text()) | ({"index_topk": index_topk} if index_topk else {})))
    report = look(
        home, {"engine": "vllm"}, inventory=recorded("h200-x8"), surroundings=sane(tmp_path / "root"),
        environ={"INGOT_VLLM": str(program)}, only="vllm-kernels",
    )  # fmt: skip
    assert ids(report) == (["indexer-without-deepgemm"] if found else [])


# --------------------------------------------------------------------------------------------------------------------
# Which devices
# --------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("machine", "listed", "found"),
    [
        ("h200-x8", "0", []),
        ("h200-x8", "0,1,2", []),
        ("h200-x8", "8", ["devices-out-of-range"]),
        ("h200-x8", "0,8,1", ["devices-out-of-range"]),
        ("h200-x8", "0,0", ["devices-repeated"]),
        ("h200-x8", "gpu0", ["devices-unknown"]),
        ("h200-x8", "GPU-ffffffff-ffff", ["devices-unknown"]),
        ("h200-x8", "", ["devices-hidden"]),
        ("h200-x8", "-1", ["devices-hidden"]),
        ("h100-mig-one-of-two", "0", ["devices-divided"]),
        ("none", "3", []),  # nothing is hidden where there is nothing
    ],
)
def test_what_cuda_makes_of_the_list_of_visible_devices(
    home: Home, machine: str, listed: str, found: list[str]
) -> None:
    environ = {"CUDA_VISIBLE_DEVICES": listed}
    report = look(home, inventory=recorded(machine), environ=environ, only="visible-devices")
    assert ids(report) == found
    for finding in report.findings:
        if finding.fix and finding.fix.patch:
            is_fixed(home, finding, {}, "visible-devices", inventory=recorded(machine), environ=environ)
        else:
            assert finding.fix.command.startswith("export CUDA_VISIBLE_DEVICES=")
            right = {"CUDA_VISIBLE_DEVICES": finding.fix.command.partition("=")[2]}
            assert look(home, inventory=recorded(machine), environ=right, only="visible-devices").findings == []


def test_uuids_and_indices_are_not_mixed(home: Home) -> None:
    """The list ends at the first entry of the other kind."""
    inventory = recorded("h200-x8")
    listed = f"{inventory.gpus[0].uuid},1"
    finding = one(look(home, inventory=inventory, environ={"CUDA_VISIBLE_DEVICES": listed}, only="visible-devices"))
    assert finding.id == "devices-mixed"
    assert inventory.gpus[1].uuid in finding.fix.command


def test_a_list_of_which_nothing_is_left_is_an_error_and_one_beside_the_profiles_choice_a_warning(home: Home) -> None:
    inventory = recorded("h200-x8")
    environ = {"CUDA_VISIBLE_DEVICES": "9"}
    assert one(look(home, inventory=inventory, environ=environ, only="visible-devices")).severity is Severity.ERROR
    chosen = {"device": inventory.gpus[2].uuid}
    report = look(home, chosen, inventory=inventory, environ=environ, only="visible-devices")
    assert one(report).severity is Severity.WARNING
    environ = {"CUDA_VISIBLE_DEVICES": "0"}
    finding = one(look(home, chosen, inventory=inventory, environ=environ, only="visible-devices"))
    assert finding.id == "device-not-visible"
    is_fixed(home, finding, chosen, "visible-devices", inventory=inventory, environ=environ)


@pytest.mark.parametrize(
    ("machine", "config", "changes", "found", "patch"),
    [
        ("h200-x8", {}, {"tensor-parallel-size": 2}, [], None),
        ("h200-x8", {}, {"tensor-parallel-size": 4}, [], None),  # two key-value heads, each twice
        ("h200-x8", {}, {"tensor-parallel-size": 3}, ["tensor-parallel-indivisible"], 2),
        ("h200-x8", {"num_attention_heads": 6, "num_key_value_heads": 2}, {"tensor-parallel-size": 3},
         ["tensor-parallel-indivisible"], 2),
        ("rtx-pro-6000-x2", {}, {"tensor-parallel-size": 4}, ["gpus-too-few"], 2),
        ("rtx-pro-6000", {}, {"tensor-parallel-size": 4}, ["gpus-too-few"], None),
        ("h100-mig-one-of-two", {}, {"tensor-parallel-size": 2}, ["gpus-too-few"], None),  # slices do not count
        ("h200-x8", {"quantization_config": FP8, "intermediate_size": 384}, {"tensor-parallel-size": 2},
         ["tensor-parallel-indivisible"], None),  # vLLM #17327: 192 does not divide by 128
        ("none", {}, {"tensor-parallel-size": 2}, [], None),  # on a CPU: several sockets
    ],
)  # fmt: skip
def test_the_model_can_be_split_as_asked(
    home: Home, program: dict[str, str], machine: str, config: dict[str, Any], changes: dict[str, Any],
    found: list[str], patch: int | None,
) -> None:  # fmt: skip
    configure(home, **config)
    changes = {"engine": "vllm", **changes}
    report = look(home, changes, inventory=recorded(machine), environ=program, only="parallelism")
    assert ids(report) == found
    for finding in report.findings:
        assert finding.fix.patch == {"tensor-parallel-size": patch}
        is_fixed(home, finding, changes, "parallelism", inventory=recorded(machine), environ=program)


@pytest.mark.parametrize(
    ("machine", "config", "size", "found", "patch"),
    [
        ("h200-x8", {}, 4, [], None),
        ("h200-x8", {}, 3, ["tensor-parallel-indivisible"], 2),
        ("h200-x8", {"intermediate_size": 130}, 4, ["tensor-parallel-indivisible"], 2),
        ("h200-x8", {"quantization_config": FP8, "intermediate_size": 384}, 2, ["tensor-parallel-indivisible"], None),
        ("rtx-pro-6000-x2", {}, 4, ["gpus-too-few"], 2),
        ("h100-mig-one-of-two", {}, 2, ["gpus-too-few"], None),
        ("none", {}, 2, [], None),
        ("none", {}, 3, ["tensor-parallel-indivisible"], 2),
    ],
)
def test_the_native_engine_splits_a_model_where_its_sizes_divide(
    home: Home, machine: str, config: dict[str, Any], size: int, found: list[str], patch: int | None
) -> None:
    configure(home, **config)
    changes = {"tensor-parallel-size": size}
    report = look(home, changes, inventory=recorded(machine), only="parallelism")
    assert ids(report) == found
    for finding in report.findings:
        assert finding.fix.patch == {"tensor-parallel-size": patch}
        is_fixed(home, finding, changes, "parallelism", inventory=recorded(machine))


def test_ranks_take_gpus_of_which_the_fullest_decides(home: Home) -> None:
    """Each gets the plan of the card with the least memory, and all are named to the engine, in order."""
    inventory = recorded("h200-x8")
    full = structs.replace(inventory.gpus[3], memory_free_bytes=40 * GIB)
    gpus = tuple(full if gpu.uuid == full.uuid else gpu for gpu in inventory.gpus[:4])
    inventory = structs.replace(inventory, gpus=gpus)
    alone = look(home, inventory=inventory).plan
    shared = look(home, {"tensor-parallel-size": 4}, inventory=inventory).plan
    assert alone is not None
    assert isinstance(shared, NativePlan)
    assert len(alone.taken) == 1
    assert {gpu.uuid for gpu in shared.taken} == {gpu.uuid for gpu in gpus}
    assert shared.memory.available_bytes <= 40 * GIB < alone.memory.available_bytes
    assert shared.memory.weight_bytes < alone.memory.weight_bytes
    config = shared.engine_config()
    assert config.ranks == 4
    assert config.environment["CUDA_VISIBLE_DEVICES"].split(",") == [gpu.uuid for gpu in shared.taken]


def test_ranks_on_a_cpu_share_the_hosts_memory(home: Home) -> None:
    alone, shared = (look(home, {"tensor-parallel-size": size}, inventory=recorded("none")).plan for size in (1, 2))
    assert isinstance(alone, NativePlan)
    assert isinstance(shared, NativePlan)
    assert shared.engine_config().ranks == 2
    assert shared.memory.total_bytes == alone.memory.total_bytes // 2


def test_different_gpus_together_are_a_warning(home: Home, program: dict[str, str]) -> None:
    inventory = recorded("rtx-pro-6000-x2")
    mixed = (inventory.gpus[0], structs.replace(inventory.gpus[1], name="NVIDIA GeForce RTX 5090"))
    changes = {"engine": "vllm", "tensor-parallel-size": 2}
    machine: dict[str, Any] = {"inventory": structs.replace(inventory, gpus=mixed), "environ": program}
    finding = one(look(home, changes, only="parallelism", **machine))
    assert (finding.id, finding.severity) == ("gpus-differ", Severity.WARNING)
    is_fixed(home, finding, changes, "parallelism", **machine)


# --------------------------------------------------------------------------------------------------------------------
# Memory
# --------------------------------------------------------------------------------------------------------------------


def half_full(inventory: Inventory) -> Inventory:
    gpu = inventory.gpus[0]
    return structs.replace(inventory, gpus=(structs.replace(gpu, memory_free_bytes=gpu.memory_bytes // 2),))


@pytest.mark.parametrize(("engine", "severity"), [("native", Severity.WARNING), ("vllm", Severity.ERROR)])
def test_memory_that_others_hold_is_reported_with_their_names(
    home: Home, program: dict[str, str], engine: str, severity: Severity
) -> None:
    """vLLM #20305 ends there; the native engine makes its cache smaller."""
    machine: dict[str, Any] = {"inventory": half_full(recorded("rtx-pro-6000")), "environ": program}
    finding = one(look(home, {"engine": engine}, only="held-memory", **machine))
    assert (finding.id, finding.severity) == ("memory-held", severity)
    process = machine["inventory"].gpus[0].processes[0]
    assert f"{process.name} ({process.pid})" in finding.message
    is_fixed(home, finding, {"engine": engine}, "held-memory", **machine)


def test_what_our_own_engine_holds_is_not_held_by_others(home: Home, tmp_path: Path, program: dict[str, str]) -> None:
    """Asked while it serves: it ends before its successor starts. Another process of that number is not it."""
    inventory = half_full(recorded("rtx-pro-6000"))
    own = GpuProcess(pid=os.getpid(), name="ours", memory_bytes=inventory.gpus[0].memory_bytes // 2)
    mine = structs.replace(inventory, gpus=(structs.replace(inventory.gpus[0], processes=(own,)),))
    machine: dict[str, Any] = {"inventory": mine, "environ": program, "surroundings": sane(tmp_path / "root")}
    started = psutil.Process().create_time()
    for began, found in ((started, []), (started - 9999, ["memory-held"])):
        home.lock.write_text(json.dumps({"pid": os.getpid(), "host": "", "port": 1, "started": began}))
        assert ids(look(home, {"engine": "vllm"}, only="held-memory", **machine)) == found
    home.lock.write_text("nonsense")
    assert ids(look(home, {"engine": "vllm"}, only="held-memory", **machine)) == ["memory-held"]


@pytest.mark.parametrize(
    ("shm_mib", "workers", "severity"),
    [(64, 2, Severity.ERROR), (256, 2, Severity.WARNING), (1024, 2, None), (1024, 8, Severity.WARNING), (64, 1, None)],
)
def test_shared_memory_is_enough_for_the_workers(
    home: Home, shm_mib: int, workers: int, severity: Severity | None
) -> None:
    """SGLang #5096: 64 MiB, as Docker gives, does not do; one worker needs none."""
    inventory = recorded("h200-x8", shm_bytes=shm_mib << 20, shm_free_bytes=shm_mib << 20, container="docker")
    report = look(home, {"engine": "vllm", "tensor-parallel-size": workers}, inventory=inventory, only="shared-memory")
    assert [finding.severity for finding in report.findings] == ([severity] if severity else [])
    assert all("--shm-size" in finding.fix.text for finding in report.findings)


@pytest.mark.parametrize(("shm_mib", "ids"), [(64, ["shared-memory-small"]), (160, [])])
def test_vllm_on_a_cpu_shares_memory_with_itself(home: Home, shm_mib: int, ids: list[str]) -> None:
    """vLLM 0.32 with Docker's own 64 MiB: "160 MiB required", half a minute after the start."""
    inventory = recorded("none", shm_bytes=shm_mib << 20, shm_free_bytes=shm_mib << 20, container="docker")
    report = look(home, {"engine": "vllm"}, inventory=inventory, only="shared-memory")
    assert [finding.id for finding in report.findings] == ids


def test_what_killed_engines_left_in_shared_memory_is_reported(home: Home) -> None:
    inventory = recorded("h200-x8", shm_bytes=8 * GIB, shm_free_bytes=GIB // 8)
    changes = {"engine": "vllm", "tensor-parallel-size": 2}
    assert "nccl-*" in one(look(home, changes, inventory=inventory, only="shared-memory")).fix.command


def test_a_kernel_that_promises_no_more_than_it_has_is_reported(home: Home, tmp_path: Path) -> None:
    """SGLang #6418, "Cannot allocate memory", and mappings of which there are few."""
    around = sane(tmp_path)
    write(tmp_path, {"/proc/sys/vm/overcommit_memory": "2\n"})
    for left, found in ((40 << 20, []), (1 << 20, ["overcommit-forbidden"])):
        write(tmp_path, {"/proc/meminfo": f"CommitLimit: {(50 << 20) + left} kB\nCommitted_AS: {50 << 20} kB\n"})
        report = look(home, inventory=recorded("h200-x8"), surroundings=around, only="host-memory")
        assert ids(report) == found
    write(tmp_path, {"/proc/sys/vm/overcommit_memory": "0\n", "/proc/sys/vm/max_map_count": "4096\n"})
    report = look(home, inventory=recorded("none"), surroundings=around, only="host-memory")
    assert ids(report) == ["mappings-few"]


# --------------------------------------------------------------------------------------------------------------------
# Limits and clock
# --------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("host", "changes", "found"),
    [
        ({"open_files": 1024}, {}, []),
        ({"open_files": 1024}, {"engine": "vllm"}, []),
        ({"open_files": 256}, {}, ["open-files-few"]),
        ({"open_files": 1024}, {"max-num-seqs": 2048}, ["open-files-few"]),
        ({"open_files": None, "processes": None}, {}, []),
        ({"processes": 30}, {}, ["processes-few"]),
        ({"processes": 30_000}, {}, []),
    ],
)
def test_limits_leave_room_for_requests_and_threads(
    home: Home, tmp_path: Path, host: dict[str, Any], changes: dict[str, Any], found: list[str]
) -> None:
    around = replace(sane(tmp_path), uid=1000)
    report = look(home, changes, inventory=recorded("rtx-pro-6000", **host), surroundings=around, only="limits")
    assert ids(report) == found


def test_a_containers_limit_of_processes_binds_root_too(home: Home, tmp_path: Path) -> None:
    around = replace(sane(tmp_path), uid=0)
    inventory = recorded("rtx-pro-6000", processes=10)
    assert ids(look(home, inventory=inventory, surroundings=around, only="limits")) == []
    inventory = recorded("rtx-pro-6000", processes=100, processes_left=20)
    finding = one(look(home, inventory=inventory, surroundings=around, only="limits"))
    assert (finding.id, finding.value, finding.severity) == ("processes-few", 20, Severity.ERROR)


def test_infiniband_needs_locked_memory_only_over_several_hosts(home: Home, tmp_path: Path) -> None:
    around = sane(tmp_path)
    write(tmp_path, {"/sys/class/infiniband/mlx5_0/node_type": ""})
    inventory = recorded("h200-x8", locked_memory_bytes=64 << 10)
    changes: dict[str, Any] = {"engine": "vllm"}
    assert ids(look(home, changes, inventory=inventory, surroundings=around, only="limits")) == []
    changes["ray.address"] = "10.0.0.1:6379"
    assert ids(look(home, changes, inventory=inventory, surroundings=around, only="limits")) == ["locked-memory-small"]


def test_a_clock_that_is_behind_its_own_files_is_reported(home: Home, tmp_path: Path) -> None:
    """By more than a day: an hour is what changing over to summer time takes."""
    around = sane(tmp_path)
    for behind, found in ((3600.0, []), (40 * 86400.0, ["clock-behind"])):
        then = replace(around, now=around.now - behind)
        assert ids(look(home, inventory=recorded("none"), surroundings=then, only="clock")) == found
    at_1970 = Surroundings(root=tmp_path, now=12.0)
    assert "1970-01-01" in one(look(home, inventory=recorded("none"), surroundings=at_1970, only="clock")).message


def test_vllms_own_library_says_which_c_library_it_needs(home: Home, tmp_path: Path) -> None:
    """vLLM #15592: its wheel named an older one. Asked as objdump would be."""
    library = next(Path(msgspec.__file__).parent.glob("_core*.so"))
    content = library.read_bytes()
    names = sorted(set(re.findall(rb"GLIBC_2\.\d\d(?!\d)", content)))
    newest = max(int(name[-2:]) for name in names) if names else 0
    assert needed_glibc(library) >= (2, newest)
    program = vllm(tmp_path / "vllm")
    [packages] = (tmp_path / "vllm").glob("lib/python3.12/site-packages")
    (packages / "vllm/_C.abi3.so").write_bytes(content.replace(names[-1], b"GLIBC_2.99"))
    report = look(
        home, {"engine": "vllm"}, inventory=recorded("h200-x8"), surroundings=sane(tmp_path / "root"),
        environ={"INGOT_VLLM": str(program)}, only="libraries",
    )  # fmt: skip
    assert ids(report) == ["glibc-too-old"]
    assert "glibc 2.99" in one(report).message


@given(rest=st.binary(max_size=300))
def test_a_damaged_library_says_nothing(tmp_path_factory: pytest.TempPathFactory, rest: bytes) -> None:
    path = tmp_path_factory.getbasetemp() / "damaged.so"
    path.write_bytes(b"\x7fELF\x02\x01" + rest)
    assert needed_glibc(path) is None or needed_glibc(path) > (0, 0)


@pytest.mark.parametrize("name", ["launches", "active", "selftest"])
def test_a_folder_of_ours_that_is_none_is_reported_before_the_launch(home: Home, tmp_path: Path, name: str) -> None:
    """A file of its name, or a link to nothing: no launch could be written there."""
    place = home.root / name
    shutil.rmtree(place, ignore_errors=True)
    for make in (place.touch, lambda: place.symlink_to("nowhere")):
        make()
        finding = one(look(home, inventory=recorded("none"), surroundings=sane(tmp_path), only="disk-space"))
        assert (finding.id, finding.severity) == ("state-folder-damaged", Severity.ERROR)
        assert str(place) in finding.message
        assert finding.fix.command == f"mv {place} {place}.aside"
        place.unlink()
    assert look(home, inventory=recorded("none"), surroundings=sane(tmp_path), only="disk-space").findings == []
