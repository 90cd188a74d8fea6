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

from appliance.home import Home
from appliance.launches.states import ENDED
from appliance.profile.active import read_active, write_active
from appliance.profile.schema import ProfileError
from appliance.protocol import ApplianceState, Finding, Severity, State
from console.engine_control.base import EngineControl, EngineControlError
from console.engine_control.front_door import FrontDoor

log = logging.getLogger(__name__)

DRAIN_WITHIN_S: Final = 300.0
"""Requests that have not finished by then are ended."""

LOOKS_EVERY_S: Final = 0.25
OVERDUE_S: Final = 10.0
"""How long after the deadline to keep waiting for the engine."""

SERVING: Final = frozenset({State.READY, State.DRAINING})
LAUNCHING: Final = frozenset({State.PREFLIGHT, State.STARTING, State.READY})
Next = Literal["stop", "restart"]
WhenChosen = Literal["", "now", "when-finished"]
"""The field `when` of a form that may end requests; empty if the person has not been asked yet."""


class When(enum.StrEnum):
    NOW = "now"
    FINISHED = "when-finished"


class Drain(msgspec.Struct, frozen=True, kw_only=True):
    """The engine finishes its requests; `then` is done when it has, or at `until`."""

    then: Next
    since: float
    until: float


class Undone(msgspec.Struct, frozen=True, kw_only=True):
    """The requests have finished, and `then` failed: `finding` says why."""

    then: Next
    finding: Finding


class RequestsRunning(Exception):
    """`what` would end `requests` running requests, and it is not decided whether to wait for them."""

    def __init__(self, requests: int, what: str) -> None:
        super().__init__(f"{what} would end {requests} requests")
        self.requests = requests
        self.what = what


class EngineOperations:
    """One engine's. `drain` is what is waited for, if anything; `undone` what was waited for in vain, until something
    else is done; `acting` while it is started or stopped; `wake` is called after each change."""

    def __init__(
        self,
        home: Home,
        control: EngineControl,
        front_door: FrontDoor,
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

    async def requests(self) -> int:
        """How many are in flight now."""
        state = await self._front_door.state()
        return state.requests if state is not None and state.state in SERVING else 0

    async def choose(self, when: WhenChosen, what: str) -> When:
        """The chosen option; NOW if there are no requests that `what` would end. Raises RequestsRunning if there are
        and nothing was chosen."""
        if when:
            return When(when)
        if requests := await self.requests():
            raise RequestsRunning(requests, what)
        return When.NOW

    async def start(self) -> None:
        """Of an engine that has ended, but whose front door is still there to say so, a restart."""
        self._call_off()
        mark_stopped(self._home, stopped=False)
        request_launch(self._home)
        state = await self._front_door.state()
        ended = state is not None and state.state in ENDED
        await self._do(self._control.restart if ended else self._control.start)

    async def stop(self, when: When = When.NOW) -> int:
        """How many requests it waits for before it does."""
        return await self._end("stop", when)

    async def restart(self, when: When = When.NOW) -> int:
        """The same; the engine then starts with the active profile."""
        return await self._end("restart", when)

    async def finish_now(self) -> None:
        """Do what is waited for at once. Of a drain that another console began: what this one would do after it."""
        await self._end(self.drain.then if self.drain else self._then(), When.NOW)

    async def resume(self) -> None:
        """At the console's start: wait on for a drain that outlived the last console."""
        state = await self._front_door.state()
        if state is not None and state.state is State.DRAINING:
            self._wait(self._then(), state.drain_until or time.time() + self._drain_within_s)
        elif state is not None and state.state is State.STOPPED and not is_stopped(self._home):
            await self._end("restart", When.NOW)

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

    async def _end(self, then: Next, when: When) -> int:
        self._call_off()
        before = is_stopped(self._home)
        mark_stopped(self._home, stopped=then == "stop")
        try:
            if when is When.FINISHED:
                state = await self._front_door.drain(self._drain_within_s)
                if state is not None and state.state is State.DRAINING and state.requests:
                    self._wait(then, state.drain_until or time.time() + self._drain_within_s)
                    return state.requests
            await self._carry_out(then)
        except EngineControlError:
            mark_stopped(self._home, stopped=before)
            raise
        return 0

    def _wait(self, then: Next, until: float) -> None:
        self.drain = Drain(then=then, since=time.time(), until=until)
        self._waiting = asyncio.create_task(self._when_drained(self.drain))
        self._wake()

    def _call_off(self) -> None:
        if self._waiting is not None and self._waiting is not asyncio.current_task():
            self._waiting.cancel()
        self._waiting = self.drain = self.undone = None

    async def _when_drained(self, drain: Drain) -> None:
        while time.time() < drain.until + OVERDUE_S:
            state = await self._front_door.state()
            if state is None or state.state is not State.DRAINING:
                break
            await asyncio.sleep(LOOKS_EVERY_S)
        try:
            await self._carry_out(drain.then)
        except EngineControlError as error:
            log.warning("The engine was drained, and then could not %s: %s", drain.then, error)
            self.undone = Undone(then=drain.then, finding=_after_drain(drain.then, error.finding))
        finally:
            if self.drain is drain:
                self.drain = self._waiting = None
                self._wake()

    async def _carry_out(self, then: Next) -> None:
        if then == "restart":
            request_launch(self._home)
            await self._do(self._control.restart)
        else:
            await self._do(self._control.stop)

    async def _do(self, act: Callable[[], Awaitable[None]]) -> None:
        self.acting = True
        self._wake()
        try:
            await act()
        finally:
            self.acting = False
            self._wake()


def mark_stopped(home: Home, *, stopped: bool) -> None:
    """Record whether somebody stopped the engine on purpose."""
    if stopped:
        home.engine_stopped.touch()
    else:
        home.engine_stopped.unlink(missing_ok=True)


def forget_stop_before(home: Home, started: float) -> None:
    """A launch that began after the engine was stopped on purpose was wanted by somebody."""
    with contextlib.suppress(FileNotFoundError):
        if home.engine_stopped.stat().st_mtime < started:
            mark_stopped(home, stopped=False)


def _after_drain(then: Next, finding: Finding) -> Finding:
    return Finding(
        id="undone-after-drain",
        severity=Severity.ERROR,
        message=f"All requests have finished, but the engine did not {then}. {finding.message}",
        fix=finding.fix,
    )


def is_stopped(home: Home) -> bool:
    return home.engine_stopped.exists()


def request_launch(home: Home) -> None:
    """Reserve an id for the next launch that marks it as requested by a person, so that it is never refused as part of
    a crash loop."""
    try:
        active = read_active(home)
        if active is not None and (active.launch is None or home.launch(active.launch).exists()):
            write_active(home, msgspec.structs.replace(active, launch=home.new_launch_id()))
    except (ProfileError, OSError) as error:
        log.warning("No id could be reserved for the next launch: %s", error)  # the engine will report the cause
