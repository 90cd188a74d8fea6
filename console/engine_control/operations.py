"""Starting, stopping and restarting the engine as a person asks for it: at once, or when its requests have finished.

The one path by which the console ends requests. That it was stopped on purpose is kept in the state folder: the engine
then stays stopped when the console itself starts again.
"""

from __future__ import annotations

import asyncio
import contextlib
import enum
import logging
import time
from collections.abc import Awaitable, Callable
from typing import Final, Literal

import msgspec

from appliance.home import Home, write_atomically
from appliance.launches.states import ENDED
from appliance.profile.active import read_active, write_active
from appliance.profile.schema import ProfileError
from appliance.protocol import ApplianceState, Finding, Severity, State
from console.authors import done_by
from console.engine_control.base import EngineControl, EngineControlError
from console.engine_control.front_door import FrontDoorClient, NoState

log = logging.getLogger(__name__)

DRAIN_WITHIN_S: Final = 300.0
"""Requests that have not finished by then are ended."""

LOOKS_EVERY_S: Final = 0.25
OVERDUE_S: Final = 10.0
"""How long after the deadline to keep waiting for the engine."""

SERVING: Final = frozenset({State.READY, State.DRAINING})
LAUNCHING: Final = frozenset({State.PREFLIGHT, State.STARTING, State.READY})
Next = Literal["stop", "restart"]
DONE: Final[dict[Next, str]] = {"stop": "Stopped", "restart": "Restarted"}
WhenChosen = Literal["", "now", "when-finished"]
"""The field `when` of a form that may end requests; empty if the person has not been asked yet."""


class When(enum.StrEnum):
    NOW = "now"
    FINISHED = "when-finished"


class Drain(msgspec.Struct, frozen=True, kw_only=True):
    """The engine finishes its requests; `then` is done when it has, or at `until`. `why` says who wanted it."""

    then: Next
    why: str = ""
    since: float
    until: float


class Undone(msgspec.Struct, frozen=True, kw_only=True):
    """The requests have finished, and `then` failed: `finding` says why."""

    then: Next
    finding: Finding


class RequestsRunning(Exception):
    """`what` would end `requests` running requests (None: nobody knows how many), and it is not decided whether to wait
    for them."""

    def __init__(self, requests: int | None, what: str) -> None:
        super().__init__(f"{what} would end {'an unknown number of' if requests is None else requests} requests")
        self.requests = requests
        self.what = what


class EngineOperations:
    """One engine's. `drain` is what is waited for, if anything; `undone` what was waited for in vain, until something
    else is done; `acting` while it is started or stopped; `wake` is called after each change."""

    def __init__(
        self,
        home: Home,
        control: EngineControl,
        front_door: FrontDoorClient,
        wake: Callable[[], None] = lambda: None,
        drain_within_s: float = DRAIN_WITHIN_S,
    ) -> None:
        self.drain: Drain | None = None
        self.undone: Undone | None = None
        self.acting = False
        self._home = home
        self._control = control
        self._front_door = front_door
        self._wake = wake
        self._drain_within_s = drain_within_s
        self._waiting: asyncio.Task[None] | None = None

    async def requests(self) -> int | None:
        """How many are in flight now; None if the front door does not say."""
        state = await self._front_door.state()
        if state is NoState.UNKNOWN:
            return None
        return state.requests if isinstance(state, ApplianceState) and state.state in SERVING else 0

    async def choose(self, when: WhenChosen, what: str) -> When:
        """The chosen option; NOW if there are no requests that `what` would end. Raises RequestsRunning if there are,
        or may be, and nothing was chosen."""
        if when:
            return When(when)
        if (requests := await self.requests()) != 0:
            raise RequestsRunning(requests, what)
        return When.NOW

    async def start(self) -> None:
        """Of an engine that has ended, but whose front door is still there to say so, a restart."""
        self._call_off()
        forget_stop(self._home)
        request_launch(self._home)
        state = await self._front_door.state()
        ended = isinstance(state, ApplianceState) and state.state in ENDED
        await self._do(self._control.restart if ended else self._control.start)

    async def stop(self, when: When = When.NOW, *, why: str = "") -> int | None:
        """How many requests it waits for before it does; None if it waits for an unknown number. `why` is what the
        history, and the clients whose requests are ended, are told: "Stopped by admin"."""
        return await self._end("stop", when, why)

    async def restart(self, when: When = When.NOW, *, why: str = "") -> int | None:
        """The same; the engine then starts with the active profile."""
        return await self._end("restart", when, why)

    async def finish_now(self, who: str) -> None:
        """Do what is waited for at once. Of a drain that another console began: what this one would do after it."""
        then = self.drain.then if self.drain else self._then()
        await self._end(then, When.NOW, done_by(DONE[then], who))

    async def resume(self) -> None:
        """At the console's start: wait on for a drain that outlived the last console."""
        state = await self._front_door.state()
        if not isinstance(state, ApplianceState):
            return
        if state.state is State.DRAINING and state.replaced_by is None:
            until = state.drain_until or time.time() + self._drain_within_s
            self._wait(self._then(), stopped_because(self._home), until)
        elif state.state is State.STOPPED and not is_stopped(self._home):
            await self._end("restart", When.NOW, "")

    def seen(self, appliance: ApplianceState | None, *, running: bool) -> None:
        """Somebody else may start or stop the engine, such as `docker compose up`: what that settles is forgotten."""
        launching = appliance is not None and appliance.state in LAUNCHING
        if self.undone is not None and (launching or (self.undone.then == "stop" and not running)):
            self.undone = None
        if launching and appliance is not None and appliance.launch is not None:
            forget_stop_before(self._home, appliance.launch.started)

    async def close(self) -> None:
        self._call_off()

    def _then(self) -> Next:
        return "stop" if is_stopped(self._home) else "restart"

    async def _end(self, then: Next, when: When, why: str) -> int | None:
        self._call_off()
        before = stopped_because(self._home) if is_stopped(self._home) else None
        _mark(self._home, why if then == "stop" else None)
        try:
            if when is When.FINISHED:
                state = await self._front_door.drain(self._drain_within_s, why)
                if state is NoState.UNKNOWN:
                    self._wait(then, why, time.time() + self._drain_within_s)
                    return None
                if isinstance(state, ApplianceState) and state.state is State.DRAINING and state.requests:
                    self._wait(then, why, state.drain_until or time.time() + self._drain_within_s)
                    return state.requests
            await self._carry_out(then, why)
        except EngineControlError:
            _mark(self._home, before)
            raise
        return 0

    def _wait(self, then: Next, why: str, until: float) -> None:
        self.drain = Drain(then=then, why=why, since=time.time(), until=until)
        self._waiting = asyncio.create_task(self._when_drained(self.drain))
        self._wake()

    def _call_off(self) -> None:
        if self._waiting is not None and self._waiting is not asyncio.current_task():
            self._waiting.cancel()
        self._waiting = self.drain = self.undone = None

    async def _when_drained(self, drain: Drain) -> None:
        try:
            await self._drained(drain)
            await self._carry_out(drain.then, drain.why)
        except EngineControlError as error:
            log.warning("The engine was drained, and then could not %s: %s", drain.then, error)
            self.undone = Undone(then=drain.then, finding=_after_drain(drain.then, error.finding))
        finally:
            if self.drain is drain:
                self.drain = self._waiting = None
                self._wake()

    async def _drained(self, drain: Drain) -> None:
        """Returns when no request is in flight, or the drain is overdue. An engine that is ready has not heard of the
        drain: the answer to the first call never came."""
        while time.time() < drain.until + OVERDUE_S:
            state = await self._front_door.state()
            if isinstance(state, ApplianceState) and state.state is State.READY:
                state = await self._front_door.drain(max(0.0, drain.until - time.time()), drain.why)
            if state is NoState.GONE or (isinstance(state, ApplianceState) and state.state is not State.DRAINING):
                return
            await asyncio.sleep(LOOKS_EVERY_S)

    async def _carry_out(self, then: Next, why: str) -> None:
        """The launch first, which says why to its clients: a signal could not, and would leave them time to finish."""

        async def act() -> None:
            await self._front_door.stop_now(why)
            await (self._control.restart if then == "restart" else self._control.stop)()

        if then == "restart":
            request_launch(self._home)
        await self._do(act)

    async def _do(self, act: Callable[[], Awaitable[None]]) -> None:
        self.acting = True
        self._wake()
        try:
            await act()
        finally:
            self.acting = False
            self._wake()


def _mark(home: Home, why: str | None) -> None:
    """Record that somebody stopped the engine on purpose, and what is known about it; None: nobody did."""
    if why is None:
        forget_stop(home)
        return
    home.engine_stopped.touch()
    with contextlib.suppress(OSError):  # on a full disk it is stopped all the same
        write_atomically(home.engine_stopped, why)


def forget_stop(home: Home) -> None:
    home.engine_stopped.unlink(missing_ok=True)


def forget_stop_before(home: Home, started: float) -> None:
    """A launch that began after the engine was stopped on purpose was wanted by somebody."""
    with contextlib.suppress(FileNotFoundError):
        if home.engine_stopped.stat().st_mtime < started:
            forget_stop(home)


def _after_drain(then: Next, finding: Finding) -> Finding:
    return Finding(
        id="undone-after-drain",
        severity=Severity.ERROR,
        message=f"All requests have finished, but the engine did not {then}. {finding.message}",
        fix=finding.fix,
    )


def is_stopped(home: Home) -> bool:
    return home.engine_stopped.exists()


def stopped_because(home: Home) -> str:
    """Who stopped the engine on purpose: `Stopped by admin`; empty if nobody did, or it is not known who."""
    try:
        return home.engine_stopped.read_text()
    except FileNotFoundError:
        return ""


def request_launch(home: Home) -> None:
    """Reserve an id for the next launch that marks it as requested by a person, so that it is never refused as part of
    a crash loop."""
    try:
        active = read_active(home)
        if active is not None and (active.launch is None or home.launch(active.launch).exists()):
            write_active(home, msgspec.structs.replace(active, launch=home.new_launch_id()))
    except (ProfileError, OSError) as error:
        log.warning("No id could be reserved for the next launch: %s", error)  # the engine will report the cause
