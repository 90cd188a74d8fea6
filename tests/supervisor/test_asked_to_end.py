"""An engine that somebody asked to end: its requests, its reason, and that it stays ended."""

from __future__ import annotations

import asyncio

import pytest

from appliance.core_protocol import Loaded, SamplingParams
from appliance.engine_client.launch import NativeLaunch
from appliance.home import Home
from appliance.launches.catalogue import Catalogue
from appliance.protocol import LaunchRecord, Phase, State
from appliance.supervisor import supervisor as supervisor_module
from tests.supervisor.scripted import make_supervisor
from tests.supervisor.watched import record_of, wait_for

ANN = "Stopped by ann"


async def test_a_stop_during_a_drain_lets_the_requests_finish(home: Home) -> None:
    """The history still names who asked first."""
    supervisor = make_supervisor(home, token_s=0.01)
    running = asyncio.create_task(supervisor.run())
    await wait_for(supervisor, State.READY)
    assert supervisor.client is not None
    client = supervisor.client
    generation = client.start([1, 2], SamplingParams(max_tokens=50))
    supervisor.drain(300, ANN)
    stopping = asyncio.create_task(supervisor.stop(grace_s=30))
    tokens = 0
    while tokens < 50:
        tokens += len((await generation.read()).token_ids)
    client.release(generation)
    await asyncio.wait_for(stopping, 20)
    await running
    assert record_of(home).reason == f"{ANN}."


@pytest.mark.parametrize(("within_s", "grace_s"), [(0.2, 300), (300, 0.2)])
async def test_of_a_drain_and_a_stop_the_earlier_deadline_counts(home: Home, within_s: float, grace_s: float) -> None:
    supervisor = make_supervisor(home, token_s=0.05)
    running = asyncio.create_task(supervisor.run())
    await wait_for(supervisor, State.READY)
    assert supervisor.client is not None
    supervisor.client.start([1, 2], SamplingParams(max_tokens=100_000))
    supervisor.drain(within_s, ANN)
    await asyncio.wait_for(supervisor.stop(grace_s), 20)
    await running
    reason = record_of(home).reason
    assert reason.startswith(ANN)
    assert "1 request" in reason


@pytest.mark.parametrize("within_s", [300, 0.05])
async def test_after_a_stop_a_drain_can_only_be_earlier(home: Home, within_s: float) -> None:
    """Whoever sent SIGTERM kills what has not ended by then."""
    supervisor = make_supervisor(home, token_s=0.05)
    running = asyncio.create_task(supervisor.run())
    await wait_for(supervisor, State.READY)
    assert supervisor.client is not None
    supervisor.client.start([1, 2], SamplingParams(max_tokens=100_000))
    stopping = asyncio.create_task(supervisor.stop(1.0))
    await wait_for(supervisor, State.DRAINING)
    before = supervisor.drain_until
    supervisor.drain(within_s, ANN)
    after = supervisor.drain_until
    assert before is not None
    assert after is not None
    assert after <= before
    assert (after < before) == (within_s < 1)
    await asyncio.wait_for(asyncio.gather(stopping, running), 20)
    assert supervisor.drain_until is None


async def test_an_engine_that_fails_while_draining_is_not_restarted(
    home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(supervisor_module, "RESTART_AFTER_S", 0.05)
    supervisor = make_supervisor(home, {"on-failure": "restart"}, token_s=0.05)
    running = asyncio.create_task(supervisor.run())
    await wait_for(supervisor, State.READY)
    assert supervisor.client is not None
    supervisor.client.start([1, 2], SamplingParams(max_tokens=100_000))
    supervisor.drain(300, ANN)
    supervisor.kill()
    await asyncio.wait_for(running, 20)
    assert [record.state for _, record in Catalogue(home).newest(20)] == [State.FAILED]


async def test_a_stop_before_a_restart_prevents_it(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(supervisor_module, "RESTART_AFTER_S", 600)
    supervisor = make_supervisor(home, {"on-failure": "restart"})
    running = asyncio.create_task(supervisor.run())
    await wait_for(supervisor, State.READY)
    supervisor.kill()
    await wait_for(supervisor, State.FAILED)
    supervisor.stop_now(ANN)
    await asyncio.wait_for(running, 20)
    assert len([*Catalogue(home).newest(20)]) == 1


async def test_a_stop_before_there_is_an_engine_keeps_its_reason(home: Home) -> None:
    supervisor = make_supervisor(home, load_s=600)
    supervisor.stop_now(ANN)
    await asyncio.wait_for(supervisor.run(), 20)
    record = record_of(home)
    assert (record.state, record.reason) == (State.STOPPED, f"{ANN}.")


async def test_a_core_that_has_loaded_as_its_start_is_called_off(home: Home) -> None:
    """The message was on its way when the stop came."""
    supervisor = make_supervisor(home, load_s=600)
    running = asyncio.create_task(supervisor.run())
    async with asyncio.timeout(20):
        while supervisor.record is None or not _loads(supervisor.record):  # noqa: ASYNC110
            await asyncio.sleep(0.01)
    engine = supervisor._engine
    assert isinstance(engine, NativeLaunch)
    assert engine._bring_up is not None
    engine._bring_up.cancel()
    await asyncio.wait({engine._bring_up})
    engine.told(Loaded(vocab_size=512, num_blocks=8, block_size=16, weight_bytes=1, cache_bytes=1))
    await supervisor.stop()
    await asyncio.wait_for(running, 20)
    assert supervisor.state is State.STOPPED


def _loads(record: LaunchRecord) -> bool:
    return any(phase.phase == Phase.WEIGHTS for phase in record.phases)
