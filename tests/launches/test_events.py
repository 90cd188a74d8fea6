"""Events: written once, read from any point on, by any number of readers, however the reading is cut."""

from __future__ import annotations

import asyncio
import os
import random
import time
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from appliance.engine_process.launch_journal import LaunchJournal
from appliance.home import Home
from appliance.launches import events as launch_events
from appliance.launches.catalogue import Catalogue
from appliance.launches.event_stream import EventStream, Told, UnknownEventError
from appliance.launches.events import EventLog, EventReader, last_sequence
from appliance.launches.folder import LaunchFolder
from appliance.protocol import Beat, Event, Load, LogLines, State, StateChange


def lines(count: int) -> LogLines:
    return LogLines(first=1, lines=("x" * (count % 700),))


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    writes=st.lists(st.integers(0, 40), min_size=1, max_size=30),
    after=st.integers(0, 40),
    size=st.sampled_from([1, 7, 64, 4096]),
)
def test_a_reader_gets_every_event_once(
    tmp_path_factory: pytest.TempPathFactory, writes: list[int], after: int, size: int
) -> None:
    """Whatever was read so far, and in pieces of whatever size: the next read goes on exactly there."""
    path = tmp_path_factory.mktemp("events") / "events.jsonl"
    log = EventLog(path, "a")
    reader = EventReader(path, after)
    got: list[int] = []
    before = launch_events.READ_BYTES
    launch_events.READ_BYTES = size
    try:
        for count in writes:
            for number in range(count):
                log.append(lines(number * 31), time.time())
            got += [event.sequence for event in reader.read()]
        while events := reader.read():
            got += [event.sequence for event in events]
    finally:
        launch_events.READ_BYTES = before
        log.close()
    assert got == list(range(after + 1, sum(writes) + 1))


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(cut=st.integers(0, 2000), more=st.integers(0, 5))
def test_a_torn_line_harms_no_other(tmp_path_factory: pytest.TempPathFactory, cut: int, more: int) -> None:
    """A file that ends in the middle of a line (the machine was switched off) is read up to there, and written on."""
    path = tmp_path_factory.mktemp("events") / "events.jsonl"
    log = EventLog(path, "a")
    for _ in range(10):
        log.append(StateChange(state=State.READY, reason="r" * 50), 1.0)
    log.close()
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) - min(cut, len(whole))])
    kept = path.read_bytes().count(b"\n")
    assert last_sequence(path) == kept
    log = EventLog(path, "a")
    for _ in range(more):
        log.append(StateChange(state=State.READY), 1.0)
    log.close()
    reader, got = EventReader(path), []
    while events := reader.read():
        got += [event.sequence for event in events]
    assert got == list(range(1, kept + more + 1))


def new_launch(home: Home, stream: EventStream, launch_id: str, *, attempt: bool = False) -> LaunchJournal:
    return LaunchJournal(home, stream, launch_id=launch_id, document={"name": "x"}, attempt=attempt)


async def take(stream: EventStream, count: int, after: str | None = None) -> list[Told]:
    got: list[Told] = []
    follow = stream.follow(after)
    async with asyncio.timeout(30):
        async for told in follow:
            got.append(told)
            if len(got) >= count:
                break
    await follow.aclose()
    return got


async def test_readers_that_come_and_go_lose_nothing_and_repeat_nothing(home: Home) -> None:
    """Thirty readers break off at random and resume by the last id they saw, while launches come one after another."""
    stream = EventStream(home)
    rng = random.Random(3)
    total = 4 * 52

    async def write() -> None:
        for number in range(4):
            launch = new_launch(home, stream, f"2026010{number}-000000-aaaa")
            launch.change(State.PREFLIGHT)
            for _ in range(50):
                launch.log(1, ("line",))
                if rng.random() < 0.3:
                    launch.beat(Load())
                    await asyncio.sleep(0)
            launch.change(State.FAILED)

    async def read(seed: int) -> list[str]:
        own = random.Random(seed)
        ids: list[str] = []
        while len(ids) < total:
            follow = stream.follow(ids[-1] if ids else "20250100-000000-aaaa/0")
            budget = own.randrange(1, 60)
            async for told in follow:
                if told.id is not None:
                    ids.append(told.id)
                    budget -= 1
                if budget == 0 or len(ids) == total:
                    break
            await follow.aclose()
        return ids

    first = new_launch(home, stream, "20250100-000000-aaaa")
    first.change(State.PREFLIGHT)
    first.change(State.FAILED)
    total += 2
    async with asyncio.timeout(60):
        _, *read_ids = await asyncio.gather(write(), *(read(seed) for seed in range(30)))
    expected = [f"20250100-000000-aaaa/{n}" for n in (1, 2)]
    expected += [f"2026010{launch}-000000-aaaa/{number}" for launch in range(4) for number in range(1, 53)]
    assert all(ids == expected for ids in read_ids)


async def test_a_new_front_door_goes_on_where_the_old_one_ended(home: Home) -> None:
    """The files are the memory: an id of an earlier process is good in the next one."""
    old = EventStream(home)
    launch = new_launch(home, old, "20260101-000000-aaaa")
    launch.change(State.PREFLIGHT)
    launch.change(State.FAILED, "old")
    new = EventStream(home)
    later = new_launch(home, new, "20260102-000000-aaaa")
    later.change(State.PREFLIGHT)
    got = await take(new, 2, after="20260101-000000-aaaa/1")
    assert [told.id for told in got] == ["20260101-000000-aaaa/2", "20260102-000000-aaaa/1"]


async def test_the_present_launch_is_last_even_if_the_clock_was_set_back(home: Home) -> None:
    """Ids sort by time, but time may jump: the launch that runs is always reached."""
    stream = EventStream(home)
    for launch_id in ("20260105-000000-aaaa", "20260104-000000-aaaa"):
        launch = new_launch(home, stream, launch_id)
        launch.change(State.PREFLIGHT)
        launch.change(State.FAILED)
    got = await take(stream, 3, after="20260105-000000-aaaa/1")
    assert [told.id for told in got] == [
        "20260105-000000-aaaa/2",
        "20260104-000000-aaaa/1",
        "20260104-000000-aaaa/2",
    ]


async def test_attempts_and_beats_are_told_in_passing(home: Home) -> None:
    """They reach who listens, carry no id to resume after, and are not in the order of launches."""
    stream = EventStream(home)
    launch = new_launch(home, stream, "20260101-000000-aaaa")
    launch.change(State.PREFLIGHT)
    listening = asyncio.create_task(take(stream, 4))
    await asyncio.sleep(0.05)
    attempt = new_launch(home, stream, "20260102-000000-aaaa", attempt=True)
    attempt.change(State.PREFLIGHT)
    attempt.change(State.FAILED)
    launch.beat(Load(running=2))
    got = await listening
    assert [(told.event.launch[7], told.id is None) for told in got] == [
        ("1", False),
        ("2", True),
        ("2", True),
        ("1", True),
    ]
    assert isinstance(got[-1].event.body, Beat)
    later = new_launch(home, stream, "20260103-000000-aaaa")
    later.change(State.PREFLIGHT)
    assert [told.id for told in await take(stream, 1, "20260101-000000-aaaa/1")] == ["20260103-000000-aaaa/1"]


@pytest.mark.parametrize(
    "after", ["", "/", "x/1", "20260101-000000-aaaa/x", "../../etc/passwd/1", "20260101-000000-aaaa/-1"]
)
def test_an_unknown_id_is_refused(home: Home, after: str) -> None:
    """Rather than beginning somewhere else without saying so; and no id leads out of the launches folder."""
    stream = EventStream(home)
    new_launch(home, stream, "20260101-000000-aaaa")
    with pytest.raises(UnknownEventError):
        stream.check(after)


def test_a_full_disk_does_not_end_a_launch(
    home: Home, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    """What cannot be written is lost from the history, not from the state; it is said once."""
    stream = EventStream(home)
    launch = new_launch(home, stream, "20260101-000000-aaaa")

    def full(*_: object) -> int:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "write", full)
        launch.change(State.PREFLIGHT)
        launch.log(1, ("a",))
    launch.change(State.FAILED)
    assert launch.record.state is State.FAILED
    assert capsys.readouterr().err.count("events.jsonl: No space left") == 1
    assert [event.sequence for event in EventReader(launch.folder.events).read()] == [3]


def test_the_last_good_launch_is_the_newest_of_the_same_profile(home: Home) -> None:
    """Failed launches, other profiles and damaged records are passed over."""
    stream = EventStream(home)
    for number, (name, ready) in enumerate([("a", 1.5), ("a", 2.5), ("b", 3.5), ("a", None)]):
        launch = new_launch(home, stream, f"2026010{number}-000000-aaaa")
        launch.record.profile, launch.record.ready_after_s = name, ready
        launch.folder.write_record(launch.record)
    LaunchFolder(home.launch("20260101-000000-aaaa"))
    (home.launches / "20260109-000000-aaaa").mkdir()
    (home.launches / "20260109-000000-aaaa" / "launch.json").write_text("{")
    found = Catalogue(home).last_good("a")
    assert found is not None
    assert found.ready_after_s == 2.5
    assert len(Catalogue(home).ids()) == 5


def test_an_event_knows_its_id(tmp_path: Path) -> None:
    """`<launch>/<sequence>`, and a beat repeats the last one."""
    log = EventLog(tmp_path / "events.jsonl", "a")
    event: Event = log.append(StateChange(state=State.READY), 1.0)
    assert event.id == "a/1"
    assert log.beat(Beat(Load()), 2.0).id == "a/1"
    assert last_sequence(tmp_path / "events.jsonl") == 1
