"""Who waits, whose turn it is, and what is called off, with a supervisor that only keeps what it is asked."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from appliance.home import Home
from appliance.profile.on_request import OnRequest
from appliance.profile.startable import Startable
from appliance.protocol import Diagnosis, LaunchRecord, State
from appliance.serving.access import CONSOLE
from appliance.serving.errors import ApiError
from appliance.serving.on_request import swapper
from appliance.serving.on_request.failures import Failures
from appliance.serving.on_request.swapper import Swapper


def startable(name: str, revision: str = "r1", **limits: Any) -> Startable:
    document = {"name": name, "model": {"path": name}}
    return Startable(
        model=name,
        profile=name,
        revision=revision,
        engine="native",
        saved=1.0,
        strict_requests=False,
        limits=OnRequest(start=True, **limits),
        document=document,
    )


class FakeSupervisor:
    """`checks` is cleared to hold preflight up, `fails` names models that do not start."""

    def __init__(self, running: str) -> None:
        self.state = State.READY
        self.is_starting = False
        self.stopping = asyncio.Event()
        self.checks, self.loads = asyncio.Event(), asyncio.Event()
        self.checks.set()
        self.loads.set()
        self.fails: set[str] = set()
        self.refused: set[str] = set()
        self.ran: list[str] = []
        self.reason = ""
        self.run(running)

    def run(self, name: str) -> None:
        self.document = {"name": name}
        self.record = LaunchRecord(id=name, profile=name, started=0.0, since=0.0, state=State.READY)
        limits = OnRequest(min_runtime=0.0)
        self.plan = SimpleNamespace(profile=SimpleNamespace(on_request=limits))
        self.ran.append(name)

    @property
    def is_stopping(self) -> bool:
        return self.stopping.is_set()

    @property
    def may_swap(self) -> bool:
        return self.state is State.READY and not self.is_stopping

    async def stop_wanted(self) -> str:
        await self.stopping.wait()
        return "Restarted by admin"

    async def attempt(self, launch_id: str, revision: str, document: Any, *, origin: Any) -> Any:
        await self.checks.wait()
        name = document["name"]
        if name in self.refused:
            return LaunchRecord(id=launch_id, profile=name, started=0.0, reason="no such folder")
        return None

    def keep_core_ahead(self) -> None:
        pass

    async def swap(self, source: Any, *, quiet: Any, **_: Any) -> Any:
        before = self.record.profile
        self.state = State.DRAINING
        await quiet()
        name = source.document["name"]
        self.document, self.state = source.document, State.STARTING
        await self.loads.wait()
        settled = asyncio.Event()
        settled.set()
        self.state = State.READY
        if name not in self.fails:
            self.run(name)
            return SimpleNamespace(settled=settled, record=self.record)
        self.run(before)
        diagnosis = Diagnosis(summary="The GPU is on fire.")
        record = LaunchRecord(id="x", profile=name, started=0.0, state=State.FAILED, diagnosis=diagnosis)
        return SimpleNamespace(settled=settled, record=record)


class Swaps(list[str]):
    def swapped(self, outcome: str, seconds: float | None = None) -> None:
        self.append(outcome)


class Scene(SimpleNamespace):
    supervisor: FakeSupervisor
    swapper: Swapper
    known: dict[str, Startable]
    outcomes: Swaps


@pytest.fixture
async def scene(home: Home, monkeypatch: pytest.MonkeyPatch) -> Scene:
    monkeypatch.setattr(swapper, "LOOKS_EVERY_S", 0.001)
    home.create()
    known = {name: startable(name) for name in ("a", "b", "c")}
    supervisor, outcomes = FakeSupervisor("a"), Swaps()
    profiles: Any = SimpleNamespace(read=lambda: known)
    made = Swapper(home, supervisor, profiles, outcomes, lambda key_id: f"key {key_id}")  # type: ignore[arg-type]
    return Scene(supervisor=supervisor, swapper=made, known=known, outcomes=outcomes)


async def turn(scene: Scene, model: str, key: str = "no key") -> None:
    """A request from its coming to its answer."""
    ticket = scene.swapper.enter(model, key)
    try:
        if ticket is not None:
            await asyncio.wait_for(ticket.outcome, 5)
        assert scene.supervisor.record.profile == model
    finally:
        scene.swapper.leave(ticket)


async def until(what: Any) -> None:
    async with asyncio.timeout(5):
        while not what():  # noqa: ASYNC110
            await asyncio.sleep(0.001)


async def test_all_that_wait_for_a_model_are_let_in_by_one_swap(scene: Scene) -> None:
    await asyncio.gather(*(turn(scene, "b") for _ in range(20)), turn(scene, "c"), turn(scene, "b"))
    assert scene.supervisor.ran == ["a", "b", "c"]
    assert scene.outcomes == ["ready", "ready"]
    assert (len(scene.swapper.entered), len(scene.swapper.waiting)) == (0, 0)


async def test_a_request_that_came_in_is_waited_for(scene: Scene) -> None:
    assert scene.swapper.enter("a", "no key") is None
    other = asyncio.create_task(turn(scene, "b"))
    await until(lambda: scene.supervisor.state is State.DRAINING)
    late = asyncio.create_task(turn(scene, "a"))
    await asyncio.sleep(0.02)
    assert not other.done()
    scene.swapper.leave(None)
    await asyncio.gather(other, late)
    assert scene.supervisor.ran == ["a", "b", "a"]


async def test_a_client_that_leaves_before_the_drain_calls_the_swap_off(scene: Scene) -> None:
    scene.supervisor.checks.clear()
    ticket = scene.swapper.enter("b", "no key")
    await until(lambda: scene.swapper.words().endswith("b"))
    scene.swapper.leave(ticket)
    scene.supervisor.checks.set()
    await until(lambda: scene.swapper._working is None)
    assert scene.supervisor.ran == ["a"]
    await turn(scene, "b")  # and the next one is served


async def test_a_client_that_leaves_as_it_is_let_in_is_counted_once(scene: Scene) -> None:
    ticket = scene.swapper.enter("b", "no key")
    assert ticket is not None
    await ticket.outcome
    assert len(scene.swapper.entered) == 1
    scene.swapper.leave(ticket)
    assert len(scene.swapper.entered) == 0


@pytest.mark.parametrize("held", ["checks", "loads"])
async def test_a_stop_in_the_middle_answers_everybody_with_its_reason(scene: Scene, held: str) -> None:
    getattr(scene.supervisor, held).clear()
    tickets = [scene.swapper.enter(model, "no key") for model in ("b", "c")]
    await asyncio.sleep(0.02)
    scene.supervisor.stopping.set()
    for ticket in tickets:
        assert ticket is not None
        with pytest.raises(ApiError) as refused:
            await ticket.outcome
        assert (refused.value.status, refused.value.code) == (503, "engine_not_ready")
        assert "admin" in refused.value.message
    assert scene.swapper.enter("b", "no key") is None  # its route says that nothing runs


@pytest.mark.parametrize(("how", "outcome"), [("fails", "failed"), ("refused", "refused")])
async def test_a_model_that_fails_is_not_tried_again_for_a_while(scene: Scene, how: str, outcome: str) -> None:
    """Longer each time; a new revision is tried at once."""
    clock = 1000.0
    scene.swapper._failures = Failures(lambda: clock)
    getattr(scene.supervisor, how).add("b")
    waits = []
    for _ in range(3):
        with pytest.raises(ApiError):
            await turn(scene, "b")
        with pytest.raises(ApiError) as again:
            scene.swapper.enter("b", "no key")
        waits.append(int(again.value.headers["Retry-After"]))
        clock += waits[-1]
    assert waits == [30, 60, 120]
    assert scene.outcomes == [outcome] * 3
    with pytest.raises(ApiError):
        await turn(scene, "b")
    scene.known["b"] = startable("b", "r2")
    getattr(scene.supervisor, how).clear()
    await turn(scene, "b")


async def test_a_profile_that_is_deleted_while_a_request_waits_is_not_found(scene: Scene) -> None:
    scene.supervisor.state = State.STARTING
    ticket = scene.swapper.enter("b", "no key")
    del scene.known["b"]
    scene.supervisor.state = State.READY
    assert ticket is not None
    with pytest.raises(ApiError) as refused:
        await ticket.outcome
    assert refused.value.status == 404


async def test_keys_that_may_not_start_a_model_may_use_it(scene: Scene) -> None:
    scene.known["b"] = startable("b", api_keys="key laptop, key ci")
    with pytest.raises(ApiError) as refused:
        scene.swapper.enter("b", "other")
    assert refused.value.status == 403
    await turn(scene, "b", "ci")
    await turn(scene, "b", "other")
    await turn(scene, "a")
    await turn(scene, "b", CONSOLE)


async def test_what_runs_from_a_file_cannot_be_waited_for(scene: Scene) -> None:
    del scene.known["a"]
    scene.supervisor.loads.clear()
    other = asyncio.create_task(turn(scene, "b"))
    await until(lambda: scene.supervisor.state is State.STARTING)
    with pytest.raises(ApiError) as refused:
        scene.swapper.enter("a", "no key")
    assert refused.value.status == 503
    scene.supervisor.loads.set()
    await other


async def test_a_folder_that_cannot_be_written_leaves_the_running_model_alone(scene: Scene, home: Home) -> None:
    home.launches.rmdir()
    with pytest.raises(ApiError) as refused:
        await turn(scene, "b")
    assert refused.value.status == 503
    assert scene.supervisor.ran == ["a"]
