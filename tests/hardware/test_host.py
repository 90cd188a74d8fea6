"""The host's figures: limits of cgroups of both versions, processor, disks, and that reading never fails."""

from __future__ import annotations

import os
import resource
import time
from pathlib import Path

import pytest

from appliance.hardware.cgroup import Cgroup, read_cgroup, whole_cores
from appliance.hardware.container import container
from appliance.hardware.disks import read_disks, space
from appliance.hardware.host import read_host
from appliance.hardware.processor import read_processor
from appliance.home import Home

GIB = 1 << 30


class Groups:
    """A tree of cgroups in a folder, and the two files of /proc that lead to it."""

    def __init__(self, root: Path) -> None:
        self.proc = root / "proc"
        self.tree = root / "cgroup"
        (self.proc / "self").mkdir(parents=True)

    def mount(self, kind: str, options: str = "rw", root: str = "/", at: str = "") -> None:
        place = self.tree / at
        place.mkdir(parents=True, exist_ok=True)
        line = f"30 24 0:26 {root} {place} rw,nosuid shared:9 - {kind} {kind} {options}\n"
        with (self.proc / "self" / "mountinfo").open("a") as file:
            file.write("22 28 0:20 / /proc rw - proc proc rw\n" + line)

    def belong(self, line: str) -> None:
        with (self.proc / "self" / "cgroup").open("a") as file:
            file.write(f"{line}\n")

    def write(self, group: str, **files: object) -> None:
        folder = self.tree / group
        folder.mkdir(parents=True, exist_ok=True)
        for name, value in files.items():
            (folder / name.replace("__", ".")).write_text(f"{value}\n")

    def read(self) -> Cgroup:
        return read_cgroup(self.proc)


@pytest.fixture
def groups(tmp_path: Path) -> Groups:
    return Groups(tmp_path)


def test_limits_of_version_2(groups: Groups) -> None:
    """Pages of files that can be dropped count as free; a quota is in cores."""
    groups.mount("cgroup2")
    groups.belong("0::/")
    assert groups.read() == Cgroup(version="v2")
    groups.write("", memory__max="max", cpu__max="max 100000", pids__max="max")
    assert groups.read() == Cgroup(version="v2")
    groups.write(
        "",
        memory__max=GIB,
        memory__current=GIB // 2,
        memory__stat=f"anon 5\ninactive_file {GIB // 4}",
        cpu__max="250000 100000",
        pids__max=512,
        pids__current=500,
    )
    assert groups.read() == Cgroup("v2", GIB, 3 * GIB // 4, 2.5, 512, 12)


def test_the_smallest_limit_up_the_tree_counts(groups: Groups) -> None:
    """A group's own limit may be larger than what is left above it."""
    groups.mount("cgroup2")
    groups.belong("0::/machine/pod/container")
    groups.write("machine", memory__max=64 * GIB, memory__current=60 * GIB, cpu__max="800000 100000")
    groups.write("machine/pod", memory__max=16 * GIB, memory__current=4 * GIB, pids__max=1000)
    groups.write("machine/pod/container", memory__max="max", memory__current=GIB, cpu__max="max 100000", pids__max=4000)
    groups.write("machine/pod/container", pids__current=100)
    groups.write("machine/pod", pids__current=980)  # of which other containers have most
    assert groups.read() == Cgroup("v2", 16 * GIB, 4 * GIB, 8.0, 1000, 20)


def test_a_limit_that_slows_down_counts_as_one(groups: Groups) -> None:
    """Beyond memory.high a process stands still, which helps nobody who loads weights."""
    groups.mount("cgroup2")
    groups.belong("0::/")
    groups.write("", memory__max=8 * GIB, memory__high=6 * GIB, memory__current=GIB)
    assert groups.read().memory_limit_bytes == 6 * GIB


def test_a_container_whose_group_is_the_root_of_what_it_sees(groups: Groups) -> None:
    """Its path may be the machine's, or above the mount: the mounted root is then its group."""
    groups.mount("cgroup2", root="/docker/abc")
    groups.belong("0::/docker/abc")
    groups.write("", memory__max=2 * GIB, memory__current=GIB)
    assert groups.read().memory_limit_bytes == 2 * GIB
    (groups.proc / "self" / "cgroup").write_text("0::/../other\n")
    assert groups.read().memory_limit_bytes == 2 * GIB


def test_limits_of_version_1(groups: Groups) -> None:
    """Each controller has a tree of its own; its largest number is no limit; swap has no part in it."""
    groups.mount("cgroup", "rw,memory", at="memory", root="/docker/abc")
    groups.mount("cgroup", "rw,cpu,cpuacct", at="cpu,cpuacct", root="/docker/abc")
    groups.mount("cgroup", "rw,pids", at="pids", root="/docker/abc")
    for number, name in enumerate(("memory", "cpu,cpuacct", "pids")):
        groups.belong(f"{number + 2}:{name}:/docker/abc")
    groups.write("memory", memory__limit_in_bytes=9223372036854771712, memory__usage_in_bytes=GIB)
    groups.write("cpu,cpuacct", cpu__cfs_quota_us=-1, cpu__cfs_period_us=100000)
    groups.write("pids", pids__max="max")
    assert groups.read() == Cgroup(version="v1")
    groups.write(
        "memory",
        memory__limit_in_bytes=4 * GIB,
        memory__usage_in_bytes=3 * GIB,
        memory__stat=f"cache 9\ntotal_inactive_file {GIB}",
        memory__memsw__limit_in_bytes=GIB,
    )
    groups.write("cpu,cpuacct", cpu__cfs_quota_us=150000, cpu__cfs_period_us=100000)
    groups.write("pids", pids__max=100)
    assert groups.read() == Cgroup("v1", 4 * GIB, 2 * GIB, 1.5, 100, 100)


def test_both_versions_at_once(groups: Groups) -> None:
    """Memory is version 1's there, though a tree of version 2 is mounted beside it."""
    groups.mount("cgroup", "rw,memory", at="memory")
    groups.mount("cgroup2", at="unified")
    groups.belong("4:memory:/user")
    groups.belong("0::/user")
    groups.write("memory/user", memory__limit_in_bytes=GIB, memory__usage_in_bytes=0)
    groups.write("unified/user", memory__max=5 * GIB, pids__max=70)
    assert groups.read() == Cgroup("v1", GIB, GIB, None, 70, 70)


@pytest.mark.parametrize("text", ["", "garbage", "-5", "1 2 3", "\x00", "9" * 400])
def test_files_that_hold_something_else_are_no_limit(groups: Groups, text: str) -> None:
    groups.mount("cgroup2")
    groups.belong("0::/")
    groups.write("", memory__max=text, memory__current=text, cpu__max=text, pids__max=text)
    (groups.proc / "self" / "cgroup").open("a").write("nonsense\n")
    assert groups.read().cpu_quota is None
    assert read_host(proc=groups.proc).memory_bytes > 0


def test_a_host_is_read_within_its_limits(groups: Groups) -> None:
    """Memory and cores are the group's where it has limits, and the machine's are reported beside them."""
    free = read_host(proc=groups.proc)
    assert (free.cgroup, free.memory_limit_bytes, free.memory_bytes) == (None, None, free.machine_memory_bytes)
    groups.mount("cgroup2")
    groups.belong("0::/")
    groups.write("", memory__max=GIB, memory__current=GIB // 2, cpu__max="50000 100000", pids__max=64)
    host = read_host(proc=groups.proc)
    assert (host.memory_bytes, host.memory_available_bytes, host.cores) == (GIB, GIB // 2, 1)
    assert (host.memory_limit_bytes, host.cgroup, host.cpu_quota, host.processes) == (GIB, "v2", 0.5, 64)
    assert host.machine_memory_bytes == free.memory_bytes
    assert whole_cores(8, 2.1) == 3


def test_a_host_is_read_in_no_time(tmp_path: Path) -> None:
    """Also where nothing of it can be read; and with a state folder that is not there yet."""
    home = Home.at(tmp_path / "not" / "yet")
    nothing = tmp_path / "nothing"
    started = time.process_time()
    host = read_host(home, proc=nothing, cpuinfo=nothing, shm=nothing)
    assert time.process_time() - started < 0.1
    assert (host.shm_bytes, host.processor, host.cgroup) == (None, None, None)
    assert [(disk.purpose, disk.path) for disk in host.disks] == [
        ("state", str(home.root)),
        ("models", str(home.models)),
    ]


def test_disks_and_limits_are_the_systems(tmp_path: Path) -> None:
    state, models = read_disks(Home.at(tmp_path, tmp_path / "elsewhere"))
    status = os.statvfs(tmp_path)
    assert state.total_bytes == models.total_bytes == status.f_blocks * status.f_frsize
    assert 0 < state.free_bytes <= state.total_bytes
    assert not state.read_only
    assert space(tmp_path / "missing") is None
    assert len(read_disks(Home.at(tmp_path / ("a name too long" * 30)))) == 2  # of the folder above it
    host = read_host()
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    assert host.open_files == (None if soft == resource.RLIM_INFINITY else soft)
    assert host.open_files_hard == (None if hard == resource.RLIM_INFINITY else hard)
    assert host.kernel == os.uname().release


@pytest.mark.parametrize(
    ("cpuinfo", "name", "bfloat16"),
    [
        (
            "processor\t: 0\nmodel name\t: AMD EPYC 9354\nflags\t\t: fpu avx512f avx512_bf16 sse\n",
            "AMD EPYC 9354",
            True,
        ),
        ("processor\t: 0\nmodel name\t: Xeon\nflags\t\t: fpu amx_bf16\n", "Xeon", True),
        (
            "processor\t: 0\nFeatures\t: fp asimd bf16 i8mm\nCPU implementer\t: 0x41\nCPU part\t: 0xd85\n",
            "ARM Cortex-X925",
            True,
        ),
        ("processor\t: 0\nFeatures\t: fp asimd\nCPU implementer\t: 0x99\nCPU part\t: 0x1\n", None, False),
        ("processor\t: 0\nflags\t\t: fpu avx512f avx2\nbugs\t\t: bf16\n", None, False),
        ("processor\t: 0\n", None, False),
    ],
)
def test_the_processor_is_known_by_its_first_block(
    cpuinfo: str, name: str | None, bfloat16: bool, tmp_path: Path
) -> None:
    """x86's flags or ARM's features; the other cores' blocks are not needed."""
    path = tmp_path / "cpuinfo"
    path.write_text(cpuinfo + "\nprocessor\t: 1\nmodel name\t: another\nflags\t: bf16\n")
    assert read_processor(path)[:2] == (name, bfloat16)
    assert read_processor(tmp_path / "missing") == (None, False, None)


def test_a_container_is_reported_by_what_its_maker_leaves(tmp_path: Path) -> None:
    assert container({"KUBERNETES_SERVICE_HOST": "10.0.0.1"}, tmp_path) == "Kubernetes"
    if not Path("/.dockerenv").exists() and not Path("/run/.containerenv").exists():
        assert container({"container": "lxc"}, tmp_path) == "lxc"
        assert container({}, tmp_path) is None
