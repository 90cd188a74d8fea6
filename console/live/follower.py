"""Follows the engine for all pages at once: reads its state about once a second, more often while it starts, keeps ten
minutes of load in memory, indexes launches, and publishes what changed."""

from __future__ import annotations

import asyncio
import json
import logging
import time
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Iterator
from contextlib import aclosing, contextmanager, suppress

import httpx
import msgspec
from sqlalchemy.exc import SQLAlchemyError

from appliance.launches.catalogue import Catalogue
from appliance.protocol import ApplianceState, Finding, Severity, State
from console.db.launch_index import LaunchIndex, active_revision, last_good_record, recent_launches
from console.db.sessions import Database
from console.engine_control.base import (
    TAIL_LINES,
    EngineControl,
    EngineControlError,
    EngineEvent,
    EngineStatus,
    OutputLine,
)
from console.engine_control.front_door import FrontDoorClient
from console.engine_control.operations import Drain, Undone, stopped_because
from console.live.hub import Hub
from console.live.view import EngineView
from console.logs.ansi import plain
from console.profiles.history import roll_back_target

log = logging.getLogger(__name__)

EVERY_S = 1.0
EVERY_S_WHILE_MOVING = 0.25
LIST_WITHIN_S = 1.0
HISTORY_S = 600
RECENT = 5
EVENTS_KEPT = 8
LONGEST_LINE = 2000
"""Characters of a line of the engine's own output that pages show."""
CONTROL_WITHIN_S = 1.0
AGAIN_AFTER_S = 5.0
FORESEEN = (OSError, httpx.HTTPError, msgspec.MsgspecError, SQLAlchemyError, EngineControlError)
"""Expected failures of a poll: logged without a traceback."""
COMING_UP = frozenset({State.PREFLIGHT, State.STARTING})
"""One clock for both: how long a launch has taken so far."""
MOVING = COMING_UP | {State.DRAINING}

LoadPoint = tuple[float, float, int, int, float]
"""Time, output tokens a second, requests running, waiting, share of the cache in use."""

Publisher = Callable[[EngineView, Hub], Awaitable[None] | None]


class Follower:
    """`view` is the engine as last seen; `wake()` makes it look at once; publishers are called after each look. `drain`
    says what the engine is drained for, `undone` what could not be done after that, `acting` whether it is starting or
    stopping."""

    def __init__(
        self,
        catalogue: Catalogue,
        database: Database,
        control: EngineControl,
        hub: Hub,
        engine_url: str,
        published_url: str = "",
    ) -> None:
        """`published_url` is the engine's public address, if it differs from `engine_url`."""
        self.view = EngineView()
        self.history: deque[LoadPoint] = deque(maxlen=HISTORY_S)
        self.publishers: list[Publisher] = []
        self.drain: Callable[[], Drain | None] = lambda: None
        self.undone: Callable[[], Undone | None] = lambda: None
        self.acting: Callable[[], bool] = lambda: False
        self._catalogue = catalogue
        self._database = database
        self._control = control
        self._hub = hub
        self._index = LaunchIndex(database, catalogue)
        self._listing: asyncio.Task[None] | None = None
        self._asking: asyncio.Task[None] | None = None
        self._control_says: tuple[EngineStatus, Finding | None] = EngineStatus(running=False), None
        self._output: deque[OutputLine] = deque(maxlen=TAIL_LINES)
        self._recent_events: deque[EngineEvent] = deque(maxlen=EVENTS_KEPT)
        self._failing: dict[str, str] = {}
        self._woken = asyncio.Event()
        self.client = httpx.AsyncClient(base_url=engine_url, trust_env=False)
        self.front_door = FrontDoorClient(catalogue.home, self.client)
        self._engine_url = engine_url
        self._published_url = published_url

    def wake(self) -> None:
        self._woken.set()

    async def run(self) -> None:
        """Poll until cancelled. A failed poll is logged, and polling continues."""
        listening = [asyncio.create_task(work()) for work in (self._keep_output, self._keep_events)]
        try:
            while True:
                with self._going_on("Polling the engine"):
                    await self.look()
                moving = self.view.state in MOVING or (self.view.control.running and not self.view.reachable)
                with suppress(TimeoutError):
                    async with asyncio.timeout(EVERY_S_WHILE_MOVING if moving else EVERY_S):
                        await self._woken.wait()
                self._woken.clear()
        finally:
            for task in (*listening, self._listing, self._asking):
                if task is not None:
                    task.cancel()
            await asyncio.gather(*listening, return_exceptions=True)

    async def close(self) -> None:
        await self.client.aclose()

    async def look(self) -> EngineView:
        control, problem = await self._control_status()
        self.client.base_url = control.url or self._engine_url
        answer = await self.front_door.state()
        appliance = answer if isinstance(answer, ApplianceState) else None
        await self._list_launches()
        state, since = _state(self.view, control, problem, appliance)
        async with self._database.session() as session:
            active = await active_revision(session)
            good = await roll_back_target(session) if state in (State.FAILED, State.HUNG) else None
            launch = appliance.launch if appliance else None
            earlier = await last_good_record(session, self._catalogue, launch.profile, launch.id) if launch else None
            self.view = EngineView(
                state=state,
                since=since,
                reachable=appliance is not None,
                control=control,
                drain=self.drain(),
                undone=self.undone(),
                acting=self.acting(),
                unknown=problem,
                appliance=appliance,
                active=active,
                roll_back_to=(good.profile.name, good.label) if good else None,
                recent=await recent_launches(session, RECENT),
                last_good=earlier,
                output=_lines_of_this_run(self._output, control) if appliance is None else [],
                recent_events=list(self._recent_events),
                stopped_because=stopped_because(self._catalogue.home),
                controlled=self._control.kind != "none",
                url=self._published_url or str(self.client.base_url).rstrip("/"),
            )
        self._keep_load()
        for publisher in self.publishers:
            with self._going_on(f"The publisher {publisher}"):
                done = publisher(self.view, self._hub)
                if done is not None:
                    await done
        return self.view

    async def _list_launches(self) -> None:
        """Update the list of launches. While the database is locked it stays as it was, and nothing waits for it, as
        the engine's state does not depend on it."""
        if self._listing is None or self._listing.done():
            self._listing = asyncio.create_task(self._refresh_index())
        await asyncio.wait({self._listing}, timeout=LIST_WITHIN_S)

    async def _refresh_index(self) -> None:
        with self._going_on("Indexing launches"):
            await self._index.refresh()

    @contextmanager
    def _going_on(self, what: str) -> Iterator[None]:
        """Log a failure in the body, once while it lasts, without stopping the caller."""
        try:
            yield
        except Exception as error:  # a fault that ended the follower would freeze every page for good
            said = f"{type(error).__name__}: {error}"
            if self._failing.get(what) != said:
                self._failing[what] = said
                log.warning("%s failed: %s", what, said, exc_info=not isinstance(error, FORESEEN))
        else:
            self._failing.pop(what, None)

    def _keep_load(self) -> None:
        """One point a second while the engine is ready, for the charts."""
        now = time.time()
        if not self.view.ready or (self.history and now - self.history[-1][0] < 0.9 * EVERY_S):
            return
        load = self.view.load
        point = (round(now, 1), load.output_tokens_per_s, load.running, load.waiting, load.cache_usage)
        self.history.append(point)
        self._hub.send("load", json.dumps(point))

    async def _keep_output(self) -> None:
        """What the engine writes itself, from before its front door lives: all there is when that never answers."""
        while True:
            with self._going_on("Reading the engine's output"):
                async with aclosing(self._control.follow()) as lines:
                    async for line in lines:
                        self._output.append(line._replace(text=plain(line.text)[:LONGEST_LINE]))
                return
            await asyncio.sleep(AGAIN_AFTER_S)

    async def _keep_events(self) -> None:
        while True:
            with self._going_on("Reading the engine's events"):
                async with aclosing(self._control.events()) as events:
                    async for event in events:
                        self._recent_events.append(event)
                        self.wake()
                return
            await asyncio.sleep(AGAIN_AFTER_S)

    async def _control_status(self) -> tuple[EngineStatus, Finding | None]:
        """The engine's process status, or why it is unknown. While Docker is slow, the last answer stands."""
        if self._asking is None or self._asking.done():
            self._asking = asyncio.create_task(self._ask_control())
        await asyncio.wait({self._asking}, timeout=CONTROL_WITHIN_S)
        if self._asking.done():
            self._asking.result()  # a fault is the look's
        return self._control_says

    async def _ask_control(self) -> None:
        try:
            self._control_says = await self._control.status(), None
        except EngineControlError as error:
            self._control_says = EngineStatus(running=False), error.finding


def _state(
    before: EngineView, control: EngineStatus, unknown: Finding | None, appliance: ApplianceState | None
) -> tuple[State, float | None]:
    """The engine's state and since when. If the front door does not answer, the process status says less."""
    if appliance is not None:
        launch = appliance.launch
        coming_up = launch is not None and appliance.state in COMING_UP
        return appliance.state, launch.started if coming_up and launch else appliance.since
    state = State.FAILED if unknown else _state_without_front_door(control)
    if state is State.STARTING:
        return state, control.since
    return state, before.since if before.state is state else time.time()


def _state_without_front_door(control: EngineStatus) -> State:
    if control.problem is not None and control.problem.severity is Severity.ERROR:
        return State.FAILED
    if control.running:
        return State.STARTING
    if control.out_of_memory or control.exit_code not in (None, 0):
        return State.FAILED
    return State.STOPPED if control.ended else State.IDLE


def _lines_of_this_run(lines: Iterable[OutputLine], control: EngineStatus) -> list[OutputLine]:
    """Only what it has written since it was started last: nothing else says how that run ended."""
    return [line for line in lines if control.output_since is None or line.at >= control.output_since]
