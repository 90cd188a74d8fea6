"""How an engine that hangs is noticed: silence, a stopped process, a step or phase without end, a probe unanswered."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from click.testing import CliRunner

from appliance.core_protocol import SamplingParams
from appliance.diagnosis.diagnose_command import diagnose
from appliance.engine_client import launch as native_launch
from appliance.engine_client.client import Generation
from appliance.engine_process import deadlines, engine_launch, probe
from appliance.engine_process.errors import EngineGoneError
from appliance.home import Home
from appliance.launches.stacks import read_stacks
from appliance.protocol import Phase, State
from tests.supervisor.scripted import is_alive, make_supervisor
from tests.supervisor.watched import log_of, read_to_end, record_of, wait_for


async def test_a_silent_core_is_hung_with_its_stacks(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where every process stands is written down before it is ended."""
    monkeypatch.setattr(deadlines, "SILENCE_S", 1.0)
    supervisor = make_supervisor(home, at="loaded", do="silence")
    await asyncio.wait_for(supervisor.run(), 30)
    assert supervisor.state is State.HUNG
    record = record_of(home)
    assert record.diagnosis is not None
    assert record.diagnosis.family == "hang"
    stacks = (home.launch(record.id) / "stacks.txt").read_text()
    assert "act" in stacks + log_of(home)


async def test_a_stopped_core_is_hung_and_ended(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    """SIGSTOP: neither its beats nor a TERM get through, and it is gone nevertheless."""
    monkeypatch.setattr(engine_launch, "STOPPED_S", 1.0)
    supervisor = make_supervisor(home, at="configured", do="stop")
    running = asyncio.create_task(supervisor.run())
    await wait_for(supervisor, State.STARTING)
    assert supervisor._engine is not None
    pid = supervisor._engine.child.pid
    await asyncio.wait_for(running, 30)
    assert supervisor.state is State.HUNG
    assert not is_alive(pid)


async def test_a_core_that_is_stuck_in_one_step_is_hung(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    """A deadlocked kernel: the beats go on, and no token comes. Before that it was ready."""
    monkeypatch.setitem(deadlines.STEP_LIMITS_S, "cpu", 1.0)
    supervisor = make_supervisor(home, at="submit", nth=2, do="stuck-step")
    running = asyncio.create_task(supervisor.run())
    await wait_for(supervisor, State.READY)
    assert supervisor.client is not None
    generation = supervisor.client.start([1, 2], SamplingParams(max_tokens=5))
    with pytest.raises(EngineGoneError, match=r"\d s"):
        await asyncio.wait_for(read_to_end(generation), 30)
    await running
    assert supervisor.state is State.HUNG


async def test_a_core_that_beats_and_generates_nothing_is_hung(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody asks, so nobody would notice: a probe by one real token does."""
    monkeypatch.setattr(probe, "PROBE_AFTER_S", 0.5)
    monkeypatch.setattr(native_launch, "PROBE_LIMIT_S", 1.0)
    supervisor = make_supervisor(home, at="submit", nth=2, do="mute")
    running = asyncio.create_task(supervisor.run())
    await wait_for(supervisor, State.READY)
    await asyncio.wait_for(running, 30)
    assert supervisor.state is State.HUNG
    found = record_of(home).diagnosis
    assert found is not None
    assert found.family == "hang"


async def test_a_rank_that_hangs_is_named_in_reason_diagnosis_and_stacks(home: Home) -> None:
    """By the core, which has looked at all of its processes; `ingot diagnose` finds the same in the log."""
    supervisor = make_supervisor(home, at="loaded", do="rank-hangs")
    await asyncio.wait_for(supervisor.run(), 30)
    assert supervisor.state is State.FAILED
    record = record_of(home)
    assert record.reason is not None
    assert record.reason.startswith("RankHungError: Rank 1 (pid 7)")
    assert record.diagnosis is not None
    assert (record.diagnosis.family, record.diagnosis.cause) == ("hang", "rank-hangs")
    assert "sulk (odd/even.py:7)" in record.diagnosis.summary
    stacks = read_stacks(home.launch(record.id) / "stacks.txt")
    assert stacks is not None
    assert stacks.processes[0].threads[0].frames[0].function == "sulk"
    found = CliRunner().invoke(diagnose, [str(home.launch(record.id)), "--json"])
    assert json.loads(found.output)["cause"] == "rank-hangs"


async def test_a_probe_harms_nobody_and_keeps_quiet_while_others_get_tokens(
    home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Idle, the engine is asked again and again and stays ready; while it serves it is not asked at all."""
    monkeypatch.setattr(probe, "PROBE_AFTER_S", 0.3)
    monkeypatch.setattr(engine_launch, "WATCH_INTERVAL_S", 0.05)
    supervisor = make_supervisor(home, token_s=0.02)
    running = asyncio.create_task(supervisor.run())
    await wait_for(supervisor, State.READY)
    client = supervisor.client
    assert client is not None
    asked: list[int] = []
    start = client.start

    def counted(prompt: list[int], sampling: SamplingParams, **more: Any) -> Generation:
        asked.append(len(prompt))
        return start(prompt, sampling, **more)

    monkeypatch.setattr(client, "start", counted)
    async with asyncio.timeout(30):
        while len(asked) < 2:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
    monkeypatch.setattr(probe, "PROBE_AFTER_S", 1.0)  # far longer than a token takes, also on a busy machine
    generation = start([1, 2], SamplingParams(max_tokens=100))
    await generation.read()
    asked.clear()
    while (await asyncio.wait_for(generation.read(), 30)).finish_reason is None:
        continue
    assert asked == []
    client.release(generation)
    assert supervisor.state is State.READY
    await supervisor.stop()
    await running


async def test_a_phase_that_does_not_move_is_hung(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    """The phase's deadline catches a core that beats but makes no progress."""
    monkeypatch.setitem(deadlines.FLOORS_S, "weights", 0.5)
    supervisor = make_supervisor(home, load_s=600)
    await asyncio.wait_for(supervisor.run(), 30)
    assert supervisor.state is State.HUNG
    assert Phase.WEIGHTS in record_of(home).reason
