"""The small parts that watch an engine: probes, the kernel's words, crash loops, a GPU's memory."""

from __future__ import annotations

import asyncio
import os
import re
import time
from pathlib import Path
from typing import Any

import msgspec
import pytest

from appliance.hardware import Gpu, Host, Inventory
from appliance.hardware.gpu import GpuProcess
from appliance.home import Home
from appliance.launches.catalogue import Catalogue
from appliance.launches.folder import LaunchFolder
from appliance.protocol import Diagnosis, Fix, LaunchRecord, PhaseRecord, State
from appliance.supervisor import crash_loop, device_memory, supervisor
from appliance.supervisor.abandoned import REASON as CUT_OFF
from appliance.supervisor.child import Child
from appliance.supervisor.kernel_log import KernelLog, KernelWord, of_this_end, out_of_memory
from appliance.supervisor.probe import PROBE_AFTER_S, ProbeTimer
from appliance.supervisor.stacks import dump_stacks
from tests.supervisor.scripted import make_supervisor

NOW = 1_000_000.0


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
    """Only those that tell of an end, and only new ones, each with its age."""
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
    assert log.since_start() == [KernelWord("memory.events of this control group: oom_kill 3 -> 4", 3.0)]


def test_only_the_engines_own_end_counts() -> None:
    """The kernel may have killed a browser in the same minute, or another engine last week; and an engine that ended
    of an exception was not killed, whoever else was."""
    other = KernelWord("Out of memory: Killed process 12 (firefox) total-vm:1kB", 1)
    ours = KernelWord("Out of memory: Killed process 13 (VLLM::EngineCor) total-vm:1kB", 1)
    crash = KernelWord("python3[77]: segfault at 0 ip 00007f in libcuda.so.1", 1)
    xid = KernelWord("NVRM: Xid (PCI:0000:01:00): 79, GPU has fallen off the bus.", 600)
    said = [other, ours, crash, xid]
    assert of_this_end(said, killed=False, crashed=False) == [xid]
    assert of_this_end(said, killed=True, crashed=False) == [ours, xid]
    assert of_this_end(said, killed=False, crashed=True) == [crash, xid]
    assert of_this_end([ours._replace(age_s=600_000)], killed=True, crashed=True) == []
    assert out_of_memory([xid, ours]) == ours.text
    assert out_of_memory([KernelWord("memory.events of this control group: oom_kill 0 -> 1", 2)]) is not None
    assert out_of_memory([xid]) is None


def test_power_cuts_are_no_crash_loop(home: Home) -> None:
    """A machine that serves for months must come back after the second blip, too; a start that is cut off again and
    again is one."""
    for number in (1, 2, 3):
        past(home, number, reason=CUT_OFF, diagnosis=None, ready_after_s=2.0)
    assert judge(home) is None
    for number in (4, 5):
        past(home, number, reason=CUT_OFF, diagnosis=None)
    assert judge(home) is None
    past(home, 6, reason=CUT_OFF, diagnosis=None)
    assert judge(home) is not None


def test_a_kernel_that_may_not_be_read_says_nothing(tmp_path: Path) -> None:
    """Neither buffer nor counter: an end is told without them."""
    assert KernelLog(tmp_path / "nothing", tmp_path / "nowhere").since_start() == []


def past(home: Home, number: int, state: State = State.FAILED, *, cause: str = "oom", **fields: Any) -> LaunchRecord:
    """A launch of ten seconds before the next one."""
    launch_id = f"20260101-00000{number}-0000"
    record = LaunchRecord(
        id=launch_id,
        profile="p",
        revision="r1",
        started=NOW - 100 + 10 * number,
        state=state,
        ended=NOW - 95 + 10 * number,
        phases=[PhaseRecord(phase="preflight", started=NOW), PhaseRecord(phase="weights", started=NOW)],
        diagnosis=Diagnosis(summary=f"It was {cause}.", family="memory", cause=cause, fix=Fix(text="Fix it.")),
    )
    record = msgspec.structs.replace(record, **fields)
    LaunchFolder.create(home, launch_id).write_record(record)
    return record


def judge(home: Home) -> Diagnosis | None:
    this = LaunchRecord(id="20260101-000009-0000", profile="p", revision="r1", started=NOW)
    return crash_loop.verdict(crash_loop.failures(home, this, NOW))


def test_twice_the_same_failure_is_a_loop(home: Home) -> None:
    """It would fail a third time; the diagnosis keeps what is known of the cause, and its fix."""
    past(home, 1)
    assert judge(home) is None
    past(home, 2)
    found = judge(home)
    assert found is not None
    assert found.family == "crash-loop"
    assert found.cause == "restarts-into-failure"
    assert "It was oom." in found.summary
    assert found.fix is not None
    assert found.fix.text.startswith("Fix it. ")


def test_three_failures_of_any_kind_are_a_loop(home: Home) -> None:
    """Two of different kinds are not."""
    past(home, 1, cause="one")
    past(home, 2, State.HUNG, cause="two")
    assert judge(home) is None
    past(home, 3, cause="three")
    found = judge(home)
    assert found is not None
    assert found.cause == "restarts-into-failure"


@pytest.mark.parametrize(
    ("state", "fields"),
    [
        (State.STOPPED, {}),
        (State.FAILED, {"revision": "r2"}),
        (State.FAILED, {"profile": "other"}),
        (State.FAILED, {"ended": NOW - 3600}),
    ],
)
def test_what_ends_a_loop(home: Home, state: State, fields: dict[str, Any]) -> None:
    """A launch that a person stopped, another revision, or more than ten minutes in between."""
    past(home, 1)
    past(home, 2, state, **fields)
    past(home, 3)
    assert judge(home) is None


def test_refusals_count_neither_way(home: Home) -> None:
    """Nothing was started, so nothing crashed; and a loop that was refused stays one."""
    past(home, 1)
    past(home, 2)
    past(home, 3, phases=[PhaseRecord(phase="preflight", started=NOW)])
    past(home, 4, attempt=True)
    assert judge(home) is not None


async def test_an_engine_that_had_served_is_started_again_and_not_for_ever(
    home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`on-failure: restart`: the second end of the same kind is the last, and is told as a loop with its cause."""
    monkeypatch.setattr(supervisor, "RESTART_AFTER_S", 0.05)
    owner = make_supervisor(home, {"on-failure": "restart"}, at="submit", nth=3, do="kill")
    running = asyncio.create_task(owner.run())
    ends: list[str] = []
    async with asyncio.timeout(60):
        while not running.done():
            if owner.client is not None and owner.record is not None and owner.record.id not in ends:
                ends.append(owner.record.id)
                assert owner._engine is not None
                assert owner._engine.child is not None
                owner._engine.child.kill()
            await asyncio.sleep(0.01)
    await running
    records = [record for _, record in Catalogue(home).newest(20)]
    assert [record.id for record in reversed(records[1:])] == ends
    assert len(ends) == 2
    assert [record.restart_of for record in records] == [ends[1], ends[0], None]
    assert records[0].diagnosis is not None
    assert records[0].diagnosis.family == "crash-loop"
    assert "SIGKILL" in records[0].reason or "killed" in records[0].reason
    assert owner.state is State.FAILED


async def test_an_engine_that_never_served_is_not_started_again(home: Home) -> None:
    """What kept it from starting would keep it again."""
    owner = make_supervisor(home, {"on-failure": "restart"}, at="configured", do="kill")
    await asyncio.wait_for(owner.run(), 30)
    assert len([*Catalogue(home).newest(20)]) == 1


CARD = Gpu(
    uuid="GPU-1", index=0, name="NVIDIA H200", memory_bytes=141 << 30, memory_free_bytes=140 << 30,
    compute_capability=(9, 0),
)  # fmt: skip


def machine(*gpus: Gpu) -> Inventory:
    host = Host(cores=1, memory_bytes=1, memory_available_bytes=1)
    return Inventory(gpus=gpus, driver_version=None, cuda_version=None, host=host, problem=None)


def holding(gib: int) -> Gpu:
    holder = GpuProcess(pid=7, name="python", memory_bytes=gib << 30)
    return msgspec.structs.replace(CARD, memory_free_bytes=(140 - gib) << 30, processes=(holder,))


def test_a_gpus_memory_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """A driver that takes a moment says nothing; one that never gives it back is told with who holds it."""
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
    deadline = time.monotonic() + 5
    while child.stopped() is None and time.monotonic() < deadline:  # noqa: ASYNC110
        await asyncio.sleep(0.01)
    assert (child.stopped() or "").startswith(f"process {worker} (")
    await child.end(0)


def test_stacks_tell_of_every_process_what_it_is() -> None:
    """Those that are no Python, too: a compiler that hangs is named with its command."""
    import subprocess

    process = subprocess.Popen(["sh", "-c", "sleep 601 & wait"])
    try:
        deadline = time.monotonic() + 5
        while not re.search(r"(?m)^Process \d+, state \w(, in \S+)?: sleep 601", text := dump_stacks(process.pid)):
            assert time.monotonic() < deadline, text
        assert re.search(rf"(?m)^Process {process.pid}, state \w(, in \S+)?: sh -c", text)
    finally:
        subprocess.run(["pkill", "-P", str(process.pid)], check=False)
        process.kill()
        process.wait()
