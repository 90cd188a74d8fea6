"""What a launch promises, with a core that fails on cue."""

from __future__ import annotations

import asyncio
import errno
import json
import os
import signal
import sys
import time
from asyncio.subprocess import PIPE
from pathlib import Path
from typing import Any

import pytest

from appliance.core_protocol import SamplingParams
from appliance.engine_client.client import CoreClient, Generation
from appliance.engine_client.core import NativeCore
from appliance.engine_process import process_ledger
from appliance.engine_process.conclude import End
from appliance.engine_process.errors import EngineGoneError
from appliance.home import Home
from appliance.launches.folder import LaunchFolder
from appliance.protocol import LaunchRecord, LogLines, PhaseChange, State, StateChange
from tests.supervisor.scripted import core_command, is_alive, make_profile, make_supervisor
from tests.supervisor.watched import events_of, gone, log_of, read_to_end, record_of, wait_for
from tests.tiny import write_checkpoint


async def test_a_good_launch_goes_through_its_states_and_phases_in_order(home: Home) -> None:
    """Every change is an event with the next number; the record on disk says the same."""
    supervisor = make_supervisor(home)
    running = asyncio.create_task(supervisor.run())
    await wait_for(supervisor, State.READY)
    await supervisor.stop()
    await running
    events = events_of(home)
    assert [event.sequence for event in events] == list(range(1, len(events) + 1))
    states = [event.body.state for event in events if isinstance(event.body, StateChange)]
    assert states == [State.PREFLIGHT, State.STARTING, State.READY, State.DRAINING, State.STOPPED]
    ended = [(e.body.phase, e.body.outcome) for e in events if isinstance(e.body, PhaseChange) and e.body.outcome]
    assert ended == [
        ("preflight", "done"),
        ("core start", "done"),
        ("weights", "done"),
        ("graphs", "skipped"),
        ("self-test", "done"),
        ("ready", "done"),
    ]
    record = record_of(home)
    assert record.state is State.STOPPED
    assert record.ready_after_s is not None
    assert [phase.phase for phase in record.phases] == [phase for phase, _ in ended]


async def test_the_self_tests_tokens_are_nobodys_load(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    """A chart of the load does not begin with a spike."""
    asked: list[bool] = []
    start = CoreClient.start

    def seen(self: CoreClient, *of: Any, probe: bool = False, **more: Any) -> Generation:
        asked.append(probe)
        return start(self, *of, probe=probe, **more)

    monkeypatch.setattr(CoreClient, "start", seen)
    supervisor = make_supervisor(home)
    running = asyncio.create_task(supervisor.run())
    await wait_for(supervisor, State.READY)
    assert set(asked) == {True}
    await supervisor.stop()
    await running


@pytest.mark.parametrize("at", ["start", "hello", "configured", "loaded", "submit"])
@pytest.mark.parametrize(
    ("do", "reason"),
    [
        ("raise", "RuntimeError: the flux capacitor is empty"),
        ("raise-without-fatal", "ValueError: nobody was told"),
        ("exit", "the engine ended: exit status 7"),
        ("kill", "the engine ended: killed by SIGKILL"),
    ],
)
async def test_a_core_that_dies_is_failed_with_its_first_exception(home: Home, at: str, do: str, reason: str) -> None:
    """Whenever and however it dies: failed, the cause in the reason, the processes gone, the log kept."""
    supervisor = make_supervisor(home, at=at, do=do)
    await asyncio.wait_for(supervisor.run(), 30)
    assert supervisor.state is State.FAILED
    record = record_of(home)
    assert record.reason.startswith(reason)
    assert record.diagnosis is not None
    if do == "kill":
        assert record.diagnosis.cause in ("killed", "killed-from-outside")  # whether the kernel counts its kills
        assert record.exit_status is not None
        assert "SIGKILL" in record.exit_status
    if do.startswith("raise"):
        assert "Traceback" in log_of(home)
        (evidence,) = record.diagnosis.evidence[-1:]
        assert log_of(home).splitlines()[evidence.number - 1].endswith(evidence.text)


@pytest.mark.parametrize("ledger", ["late", "blind"])
async def test_a_core_that_was_killed_is_the_first_of_its_processes_to_end(
    home: Home, monkeypatch: pytest.MonkeyPatch, ledger: str
) -> None:
    """Even if the ledger's thread notices late, or never saw it."""
    if ledger == "late":  # by then the kernel may have forgotten the status
        monkeypatch.setattr(process_ledger, "status_of_ended", lambda *_: time.sleep(0.3))
    else:
        monkeypatch.setattr(process_ledger.ProcessLedger, "_look", lambda _: None)
    supervisor = make_supervisor(home, at="loaded", do="kill")
    await asyncio.wait_for(supervisor.run(), 30)
    end = record_of(home).process_ends[0]
    assert (end.name, end.status, end.aftermath, end.by_ingot) == ("core", -signal.SIGKILL, False, False)


async def test_of_chained_exceptions_the_first_is_the_cause(home: Home) -> None:
    """An exception that only points at another is never the cause."""
    supervisor = make_supervisor(home, at="configured", do="raise-chained")
    await asyncio.wait_for(supervisor.run(), 30)
    diagnosis = record_of(home).diagnosis
    assert diagnosis is not None
    assert diagnosis.family == "memory"
    assert "first of all" in diagnosis.evidence[-1].text


@pytest.mark.parametrize(("said", "offered"), [({}, None), ({"backends": {"attention": "torch"}}, {"backends": None})])
async def test_a_fix_that_would_change_nothing_is_not_offered(home: Home, said: Any, offered: Any) -> None:
    """After a crash in native code Ingot's own choice of backends is worth a try, unless it was its own already."""
    supervisor = make_supervisor(home, said, at="configured", do="segfault")
    await asyncio.wait_for(supervisor.run(), 30)
    diagnosis = record_of(home).diagnosis
    assert diagnosis is not None
    assert diagnosis.family == "kernel-crash"
    assert diagnosis.fix is not None
    assert diagnosis.fix.patch == offered


async def test_death_while_serving_is_told_at_once(home: Home) -> None:
    """The state is failed, and who waits for tokens gets the reason, by the end of the core's process: by its silence
    alone, which takes longer, it would be hung."""
    supervisor = make_supervisor(home, token_s=0.02)
    running = asyncio.create_task(supervisor.run())
    await wait_for(supervisor, State.READY)
    assert supervisor.client is not None
    generation = supervisor.client.start([1, 2], SamplingParams(max_tokens=10_000))
    await generation.read()
    native = supervisor._engine
    assert native is not None
    os.kill(native.child.pid, 9)
    with pytest.raises(EngineGoneError, match="SIGKILL"):
        await read_to_end(generation)
    await wait_for(supervisor, State.FAILED)
    assert supervisor.client is None
    await running


async def test_a_core_that_told_its_end_and_stays_is_ended(home: Home) -> None:
    """A logged fatal exception is a failure even when the process lives on."""
    supervisor = make_supervisor(home, at="loaded", do="fatal-and-stay")
    running = asyncio.create_task(supervisor.run())
    await wait_for(supervisor, State.FAILED)
    await running
    assert record_of(home).reason == "LookupError: lost in thought"


async def test_who_left_the_group_is_ended_too(home: Home, tmp_path: Path) -> None:
    """A process in a session of its own, which no signal to the group reaches."""
    note = tmp_path / "pid"
    supervisor = make_supervisor(home, at="loaded", do="escape", write=str(note))
    running = asyncio.create_task(supervisor.run())
    await wait_for(supervisor, State.READY)
    supervisor._engine.finish(End(state=State.FAILED, reason="the test wants it"))
    await running
    await gone(int(note.read_text()))


@pytest.mark.parametrize("do", ["ignore-term", "leave-a-child"])
async def test_stopping_ends_the_whole_process_group(home: Home, tmp_path: Path, do: str) -> None:
    """Whatever the core does with signals, and whatever it started: nothing of it is left."""
    note = tmp_path / "child"
    supervisor = make_supervisor(home, at="loaded", do=do, write=str(note))
    running = asyncio.create_task(supervisor.run())
    await wait_for(supervisor, State.READY)
    assert supervisor._engine is not None
    pids = [supervisor._engine.child.pid, *([int(note.read_text())] if note.exists() else [])]
    assert all(map(is_alive, pids))
    await supervisor.stop()
    await asyncio.wait_for(running, 10)
    assert supervisor.state is State.STOPPED
    await gone(*pids)


async def test_a_failed_core_leaves_no_process_behind(home: Home, tmp_path: Path) -> None:
    """What a dead core has started ends with it."""
    note = tmp_path / "child"
    supervisor = make_supervisor(home, at="loaded", do="leave-a-child", write=str(note))
    running = asyncio.create_task(supervisor.run())
    await wait_for(supervisor, State.READY)
    assert supervisor._engine is not None
    os.kill(supervisor._engine.child.pid, 9)
    await asyncio.wait_for(running, 10)
    await gone(int(note.read_text()))


async def test_a_core_ends_whose_front_door_was_gone_before_it_began(tmp_path: Path) -> None:
    """Killed in the moment after it has started the core: whoever adopts the core is not taken for its parent."""
    code = "import os; from appliance.engine_client.core import NativeCore; core = NativeCore()\n"
    code += "print(core.child.pid, flush=True); os._exit(9)"
    environment = {**os.environ, "TMPDIR": str(tmp_path)}
    door = await asyncio.create_subprocess_exec(sys.executable, "-c", code, stdout=PIPE, env=environment)
    told, _ = await door.communicate()
    await gone(int(told), within_s=20)


@pytest.mark.parametrize("at", [State.IDLE, State.PREFLIGHT, State.STARTING])
async def test_stopping_while_it_starts(home: Home, at: State) -> None:
    """A start can be called off at any point, and is then stopped, not failed."""
    supervisor = make_supervisor(home, load_s=600)
    running = asyncio.create_task(supervisor.run())
    if at is not State.IDLE:
        await wait_for(supervisor, at, State.STARTING)
    await supervisor.stop()
    await asyncio.wait_for(running, 10)
    assert supervisor.state is State.STOPPED


async def test_draining_lets_a_running_request_finish(home: Home) -> None:
    """Between draining and stopped the answer comes to its end; new ones find no client."""
    supervisor = make_supervisor(home, token_s=0.01)
    running = asyncio.create_task(supervisor.run())
    await wait_for(supervisor, State.READY)
    client = supervisor.client
    assert client is not None
    generation = client.start([1, 2], SamplingParams(max_tokens=50))
    stopping = asyncio.create_task(supervisor.stop())
    await wait_for(supervisor, State.DRAINING)
    assert supervisor.client is None
    tokens = 0
    while not generation.finished or tokens < 50:
        tokens += len((await generation.read()).token_ids)
    client.release(generation)
    await asyncio.wait_for(stopping, 20)
    await running
    assert tokens == 50
    assert supervisor.state is State.STOPPED


async def test_a_drain_that_takes_too_long_ends_the_requests(home: Home) -> None:
    """The grace period is a limit: requests that still wait after it get the error that the engine ended."""
    supervisor = make_supervisor(home, token_s=0.05)
    running = asyncio.create_task(supervisor.run())
    await wait_for(supervisor, State.READY)
    assert supervisor.client is not None
    generation = supervisor.client.start([1, 2], SamplingParams(max_tokens=100_000))
    await supervisor.stop(grace_s=0.2)
    await running
    with pytest.raises(EngineGoneError):
        await read_to_end(generation)


async def test_a_launch_that_cannot_be_written_is_failed_and_leaves_no_core(
    home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A full disk: there is no folder to read of it, so the state says why; the core started ahead is ended."""

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(LaunchFolder, "create", full)
    core = NativeCore(core_command(home))
    supervisor = make_supervisor(home, core=core)
    await asyncio.wait_for(supervisor.run(), 30)
    assert supervisor.state is State.FAILED
    assert "No space left on device" in supervisor.reason
    told = supervisor.describe()
    assert told.launch is not None
    assert (told.state, told.launch.state, told.launch.profile) == (State.FAILED, State.FAILED, "tiny")
    assert told.launch.reason == supervisor.reason
    assert not is_alive(core.child.pid)
    assert not core.channel.folder.exists()


async def test_an_invalid_profile_is_a_failed_launch_with_findings(home: Home) -> None:
    """The launch reports what is wrong, not a crash; the core that was started ahead is gone."""
    supervisor = make_supervisor(home, profile={"max-model-lne": 5, "model": {"path": "nowhere"}})
    await asyncio.wait_for(supervisor.run(), 30)
    record = record_of(home)
    assert record.state is State.FAILED
    assert record.findings
    assert record.reason == next(finding.message for finding in record.findings)
    assert not record.diagnosis


@pytest.mark.parametrize("content", ["", "launch: [", "profile: 3", "\x00\x01"])
async def test_a_broken_active_profile_is_a_failed_launch(home: Home, content: str) -> None:
    """Half a file, or none of what it should hold: failed with a finding, never an exception."""
    home.active_profile.write_text(content)
    supervisor = make_supervisor(home)
    supervisor._profile_file = None
    await asyncio.wait_for(supervisor.run(), 30)
    record = record_of(home)
    assert record.state is State.FAILED
    assert record.findings[0].fix is not None


async def test_the_launch_takes_the_id_that_the_console_chose_once(home: Home) -> None:
    """A second start of the same active profile is a launch of its own."""
    make_profile(home)
    document = json.loads((home.root / "profile.json").read_text())
    active = {"launch": "20260101-000000-abcd", "revision": "r7", "profile": document}
    home.active_profile.write_text(json.dumps(active))
    for _ in range(2):
        supervisor = make_supervisor(home, at="hello", do="exit")
        supervisor._profile_file = None
        await asyncio.wait_for(supervisor.run(), 30)
        launch = supervisor.describe().launch
        assert launch is not None
        assert launch.revision == "r7"
    assert len(list(home.launches.iterdir())) == 2
    assert home.launch("20260101-000000-abcd").exists()


async def test_an_attempt_that_would_fail_touches_nothing(home: Home) -> None:
    """It is recorded as a launch of its own and shown as an attempt; the engine goes on serving."""
    supervisor = make_supervisor(home)
    running = asyncio.create_task(supervisor.run())
    await wait_for(supervisor, State.READY)
    serving = supervisor.describe().launch
    refused = await supervisor.attempt(
        "20990101-000000-aaaa", "r2", {"schema": 1, "name": "x", "model": {"path": "no"}}
    )
    assert isinstance(refused, LaunchRecord)
    assert refused.state is State.FAILED
    assert refused.attempt
    state = supervisor.describe()
    assert state.state is State.READY
    assert state.launch == serving
    assert state.attempt == refused
    good = await supervisor.attempt("20990101-000000-bbbb", "", json.loads(make_profile(home).read_text()))
    assert not isinstance(good, LaunchRecord)
    assert not home.launch("20990101-000000-bbbb").exists()
    with pytest.raises(FileExistsError):
        await supervisor.attempt("20990101-000000-aaaa", "", {})
    await supervisor.stop()
    await running


async def test_an_attempt_while_nothing_runs_becomes_the_state(home: Home) -> None:
    """With no engine running there is nothing to go on serving: the appliance itself has failed with that launch."""
    supervisor = make_supervisor(home, at="hello", do="exit")
    await asyncio.wait_for(supervisor.run(), 30)
    refused = await supervisor.attempt("20990101-000000-aaaa", "r2", {"schema": 1})
    state = supervisor.describe()
    assert state.launch == refused
    assert state.attempt is None
    assert state.state is State.FAILED


async def test_a_flood_in_the_log_is_kept_whole_and_told_in_part(home: Home) -> None:
    """Twenty megabytes in a moment: every line is in the file, the events stay few, the cause is found."""
    supervisor = make_supervisor(home, at="configured", do="flood", megabytes=20)
    await asyncio.wait_for(supervisor.run(), 60)
    record = record_of(home)
    assert record.reason == "RuntimeError: after the flood"
    lines = log_of(home).splitlines()
    assert len([line for line in lines if line == "x" * 98]) == 20 * 100 * 106
    told: list[Any] = [event.body for event in events_of(home) if isinstance(event.body, LogLines)]
    assert sum(len(body.lines) for body in told) < 50_000
    for body in told:
        assert list(body.lines) == lines[body.first - 1 : body.first - 1 + len(body.lines)]


async def test_an_odd_log_is_readable(home: Home) -> None:
    """Invalid UTF-8 is replaced, endless lines are cut and say so, progress bars keep their last state."""
    supervisor = make_supervisor(home, at="configured", do="odd-log")
    running = asyncio.create_task(supervisor.run())
    await wait_for(supervisor, State.READY)
    await supervisor.stop()
    await running
    first, second, third, *_ = log_of(home).splitlines()
    assert first == "bad \ufffd\ufffd utf-8"
    assert second.endswith(" more bytes cut]")
    assert len(second) < 17_000
    assert third == "100%"


async def test_a_core_that_computes_nonsense_is_not_ready(home: Home) -> None:
    """The self-test of every launch: logprobs that are no numbers end it with the difference."""
    supervisor = make_supervisor(home, at="configured", do="nan")
    await asyncio.wait_for(supervisor.run(), 30)
    record = record_of(home)
    assert record.state is State.FAILED
    assert "the logprob of token 1 is nan" in record.reason
    assert record.diagnosis is not None
    assert record.diagnosis.family == "weights"


async def test_a_checkpoint_that_answers_otherwise_than_before_is_not_ready(home: Home) -> None:
    """The first good launch records; a later one that differs beyond the tolerance is refused."""
    for logprob, state in ((-0.5, State.READY), (-0.5004, State.READY), (-0.6, State.FAILED)):
        supervisor = make_supervisor(home, logprob=logprob)
        running = asyncio.create_task(supervisor.run())
        await wait_for(supervisor, State.READY, State.FAILED)
        assert supervisor.state is state, supervisor.reason
        if state is State.FAILED:
            assert "-0.60000" in supervisor.reason
            assert "0.001" in supervisor.reason
            assert supervisor.record is not None
            diagnosis = supervisor.record.diagnosis
            assert diagnosis is not None
            assert diagnosis.fix is not None
            (recorded,) = home.selftest.iterdir()
            assert str(recorded) in diagnosis.fix.text
        await supervisor.stop()
        await running


async def test_new_weights_of_the_same_shapes_are_another_checkpoint(home: Home) -> None:
    """Somebody put another fine-tuning into the same folder: that is no damage, and is recorded anew."""
    for seed, logprob in ((0, -0.5), (1, -2.5)):
        supervisor = make_supervisor(home, logprob=logprob)
        write_checkpoint(home.models / "tiny", seed=seed)
        running = asyncio.create_task(supervisor.run())
        await wait_for(supervisor, State.READY, State.FAILED)
        assert supervisor.state is State.READY, supervisor.reason
        await supervisor.stop()
        await running
    assert len(list(home.selftest.iterdir())) == 2


async def test_the_core_gets_a_whole_configuration(home: Home, tmp_path: Path) -> None:
    """What the plan resolved reaches the core as it is."""
    from appliance.core_protocol import EngineConfig, decode_to_core

    note = tmp_path / "config"
    supervisor = make_supervisor(home, profile={"max-model-len": 128}, tell=True, write=str(note))
    running = asyncio.create_task(supervisor.run())
    await wait_for(supervisor, State.READY)
    config = decode_to_core(note.read_bytes())
    assert isinstance(config, EngineConfig)
    assert (config.device, config.dtype, config.max_model_len) == ("cpu", "float32", 128)
    assert Path(config.model_folder) == home.models / "tiny"
    await supervisor.stop()
    await running
