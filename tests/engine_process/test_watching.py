"""The small parts that watch an engine: probes, the kernel's words, a GPU's memory, stopped processes, stacks."""

from __future__ import annotations

import asyncio
import os
import re
import time
from pathlib import Path

import msgspec
import pytest

from appliance.engine_process import device_memory
from appliance.engine_process.child import Child
from appliance.engine_process.kernel_log import KernelLog, KernelRecord, of_this_end, out_of_memory
from appliance.engine_process.probe import PROBE_AFTER_S, ProbeTimer
from appliance.engine_process.stacks import dump_stacks
from appliance.hardware import Gpu, Host, Inventory
from appliance.hardware.gpu import GpuProcess


def test_a_probe_is_due_when_nobody_had_a_token_for_a_while() -> None:
    """One at a time; what others get meanwhile counts as a sign of life, and so does not the time that we slept."""
    timer = ProbeTimer(0)
    assert not timer.begin(PROBE_AFTER_S - 1)
    timer.token(PROBE_AFTER_S - 1)
    assert not timer.begin(PROBE_AFTER_S)
    assert timer.waiting(PROBE_AFTER_S) is None
    start = 2 * PROBE_AFTER_S
    assert timer.begin(start)
    assert not timer.begin(start + 1)
    assert timer.waiting(start + 5) == 5
    timer.token(start + 4)  # somebody else's; the probe itself still waits
    assert timer.waiting(start + 5) == 1
    timer.excuse(start + 60)
    assert timer.waiting(start + 61) == 1
    timer.answered(start + 62)
    assert timer.waiting(start + 99) is None
    timer.token(start + 99)
    timer.hurry()
    assert timer.begin(start + 99)


def test_the_kernels_words_since_the_start_are_told(tmp_path: Path) -> None:
    """Only messages about an end, and only new ones, each with its age."""
    buffer = tmp_path / "kmsg"
    os.mkfifo(buffer)  # like the kernel's, it is read once, and does not block
    writer = os.open(buffer, os.O_RDWR | os.O_NONBLOCK)
    log = KernelLog(buffer, tmp_path, now=lambda: 100.0)
    os.write(writer, b"6,2,90000000,-;Out of memory: Killed process 12 (python3) total-vm:1kB\n SUBSYSTEM=x\n")
    (word,) = log.since_start()
    os.close(writer)
    assert str(word) == "kernel, 10 s ago: Out of memory: Killed process 12 (python3) total-vm:1kB"


def test_a_rise_of_the_counter_is_told_with_its_time(tmp_path: Path) -> None:
    """Which a container may always read. Nobody else says when it rose: it is looked at now and then."""
    clock = 0.0
    counter = tmp_path / "memory.events"
    counter.write_text("low 0\noom 3\noom_kill 3\n")
    log = KernelLog(tmp_path / "nothing", tmp_path, now=lambda: clock)
    clock = 50.0
    counter.write_text("low 0\noom 4\noom_kill 4\n")
    log.look()
    clock = 53.0
    assert log.since_start() == [KernelRecord("memory.events of this control group: oom_kill 3 -> 4", 3.0)]


def test_only_the_engines_own_end_counts() -> None:
    """The kernel may have killed a browser in the same minute, or another engine last week; and an engine that ended
    of an exception was not killed, whoever else was."""
    other = KernelRecord("Out of memory: Killed process 12 (firefox) total-vm:1kB", 1)
    ours = KernelRecord("Out of memory: Killed process 13 (VLLM::EngineCor) total-vm:1kB", 1)
    crash = KernelRecord("python3[77]: segfault at 0 ip 00007f in libcuda.so.1", 1)
    xid = KernelRecord("NVRM: Xid (PCI:0000:01:00): 79, GPU has fallen off the bus.", 600)
    said = [other, ours, crash, xid]
    assert of_this_end(said, killed=False, crashed=False) == [xid]
    assert of_this_end(said, killed=True, crashed=False) == [ours, xid]
    assert of_this_end(said, killed=False, crashed=True) == [crash, xid]
    assert of_this_end([ours._replace(age_s=600_000)], killed=True, crashed=True) == []
    assert out_of_memory([xid, ours]) == ours.text
    assert out_of_memory([KernelRecord("memory.events of this control group: oom_kill 0 -> 1", 2)]) is not None
    assert out_of_memory([xid]) is None


def test_a_kernel_that_may_not_be_read_says_nothing(tmp_path: Path) -> None:
    """Neither buffer nor counter: an end is reported without them."""
    assert KernelLog(tmp_path / "nothing", tmp_path / "nowhere").since_start() == []


CARD = Gpu(
    uuid="GPU-1", index=0, name="NVIDIA H200", memory_bytes=141 << 30, memory_free_bytes=140 << 30,
    compute_capability=(9, 0),
)  # fmt: skip  # fmt: skip


def machine(*gpus: Gpu) -> Inventory:
    host = Host(cores=1, memory_bytes=1, memory_available_bytes=1)
    return Inventory(gpus=gpus, driver_version=None, cuda_version=None, host=host, problem=None)


def holding(gib: int) -> Gpu:
    holder = GpuProcess(pid=7, name="python", memory_bytes=gib << 30)
    return msgspec.structs.replace(CARD, memory_free_bytes=(140 - gib) << 30, processes=(holder,))


def test_a_gpus_memory_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """A driver that takes a moment says nothing; one that never gives it back is reported with the process that holds
    it."""
    looks = iter([machine(holding(80)), machine(holding(80)), machine(CARD)])
    monkeypatch.setattr(device_memory, "inventory", lambda: next(looks))
    monkeypatch.setattr(device_memory, "AGAIN_S", 0.001)
    assert device_memory.wait_until_free(CARD) == []
    assert next(looks, None) is None
    monkeypatch.setattr(device_memory, "inventory", lambda: machine(holding(80)))
    (line,) = device_memory.wait_until_free(CARD, 0.01)
    assert "80.0 GiB of NVIDIA H200" in line
    assert "python (7)" in line


def test_a_gpu_that_is_gone_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """It fell off the bus while it worked."""
    monkeypatch.setattr(device_memory, "inventory", lambda: machine())
    (line,) = device_memory.wait_until_free(CARD, 0.01)
    assert str(CARD) in line


async def test_a_stopped_process_anywhere_in_the_family_is_found() -> None:
    """Not only the one that was started: a worker of it, too."""
    child = Child(["sh", "-c", "sleep 600 & echo $!; wait"], os.environ)
    worker = int(child.output.readline())
    assert child.stopped() is None
    os.kill(worker, 19)
    deadline = time.monotonic() + 30
    while child.stopped() is None and time.monotonic() < deadline:  # noqa: ASYNC110
        await asyncio.sleep(0.01)
    assert (child.stopped() or "").startswith(f"process {worker} (")
    await child.end(0)


def test_stacks_tell_of_every_process_what_it_is() -> None:
    """Those that are no Python, too: a compiler that hangs is named with its command."""
    import subprocess

    secret = "p4" * 200  # longer than what is shown of a command
    process = subprocess.Popen(["sh", "-c", "sleep 601 & wait", f"https://admin:{secret}@host"])
    try:
        deadline = time.monotonic() + 30
        while not re.search(r"(?m)^Process \d+, state \w(, in \S+)?: sleep 601", text := dump_stacks(process.pid)):
            assert time.monotonic() < deadline, text
        assert re.search(rf"(?m)^Process {process.pid}, state \w(, in \S+)?: sh -c", text)
        assert secret[:8] not in text
    finally:
        subprocess.run(["pkill", "-P", str(process.pid)], check=False)
        process.kill()
        process.wait()
