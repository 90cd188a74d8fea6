"""When a failed engine is started again, and when that has become a loop."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
import pytest

from appliance.home import Home
from appliance.launches.catalogue import Catalogue
from appliance.launches.folder import LaunchFolder
from appliance.protocol import Diagnosis, Fix, LaunchRecord, PhaseRecord, State
from appliance.supervisor import crash_loop, supervisor
from appliance.supervisor.abandoned import close_abandoned
from tests.supervisor.scripted import make_supervisor

NOW = 1_000_000.0


def test_power_cuts_are_no_crash_loop(home: Home) -> None:
    """A machine that serves for months must come back after the second blip, too; a start that is cut off again and
    again is one."""
    for number in (1, 2, 3):
        past(home, number, cut_off=True, diagnosis=None, ready_after_s=2.0)
    assert judge(home) is None
    for number in (4, 5):
        past(home, number, cut_off=True, diagnosis=None)
    assert judge(home) is None
    past(home, 6, cut_off=True, diagnosis=None)
    assert judge(home) is not None


def test_a_launch_whose_front_door_was_killed_is_closed_as_cut_off(home: Home) -> None:
    past(home, 1, State.READY, ended=None, diagnosis=None)
    folder = Catalogue(home).folders()[0]
    close_abandoned(home)
    record = LaunchFolder(folder.path).read().record
    assert (record.state, record.cut_off) == (State.FAILED, True)


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
