"""Decides which model runs next, and has the supervisor run it.

A model that runs serves for its `min-runtime` before another takes its place, however many wait; then the oldest
waiting request decides. All requests for a model are let in together once it runs. So two clients that take turns cost
a swap per turn, and not per request.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from appliance.engine_process.launch_journal import Origin
from appliance.launches.states import ENDED
from appliance.protocol import LaunchRecord, State
from appliance.serving.access import CONSOLE
from appliance.serving.errors import ApiError, api_error, not_ready
from appliance.serving.on_request.failures import Failures
from appliance.serving.on_request.stage import Stage, Step, words
from appliance.serving.on_request.waiting import Entered, Ticket, WaitingRequests
from appliance.serving.served_model import check_name

if TYPE_CHECKING:
    from appliance.home import Home
    from appliance.profile.startable import Startable
    from appliance.serving.metrics import Metrics
    from appliance.serving.on_request.startable_profiles import StartableProfiles
    from appliance.supervisor.supervisor import Supervisor

LOOKS_EVERY_S: Final = 0.05
"""While somebody waits."""


class Swapper:
    """`key_name` gives the name of an API key by its id."""

    def __init__(
        self,
        home: Home,
        supervisor: Supervisor,
        profiles: StartableProfiles,
        metrics: Metrics,
        key_name: Callable[[str], str],
    ) -> None:
        self.waiting = WaitingRequests()
        self.entered = Entered()
        self._home = home
        self._supervisor = supervisor
        self._profiles = profiles
        self._metrics = metrics
        self._key_name = key_name
        self._failures = Failures()
        self._stage: Stage | None = None
        self._core_kept_for = ""
        self._closed = False  # to requests for the model that makes room
        self._working: asyncio.Task[None] | None = None

    @property
    def running(self) -> str:
        """The model of the last launch, whatever has become of that; empty before the first."""
        return model_of(self._supervisor.document)

    @property
    def coming(self) -> str:
        """The model that a request means which names none."""
        return self._stage.model if self._stage is not None and self._closed else self.running

    def lets_in(self, model: str) -> bool:
        """Whether requests for `model` need not wait, whatever the state of its launch."""
        return model == self.running and not self._closed

    def enter(self, model: str, key_id: str) -> Ticket | None:
        """None if a request for `model`, with that API key, is let in, and counts as such; or its place among those
        that wait. Raises ApiError if it may not wait."""
        supervisor = self._supervisor
        if supervisor.is_stopping or self.lets_in(model):
            self.entered.add()
            self._keep_core_ahead()
            return None
        startable = self._profiles.read().get(model)
        if startable is None:  # it runs from a file, and makes room
            raise not_ready(State.DRAINING, f"{self.coming!r} was asked for.")
        limits = startable.limits
        key = self._key_name(key_id)
        if model != self.coming and key_id != CONSOLE and not limits.may_be_started_by(key):
            message = (
                f"The model {model!r} is not running, and this API key may not start it. Running: {self.running!r}."
            )
            raise ApiError(403, message, param="model", code="start_not_allowed")
        if (failed := self._failures.of(startable)) is not None:
            raise failed
        if len(self.waiting.of(model)) >= limits.max_waiting:
            message = f"{limits.max_waiting:,} requests are already waiting for the model {model!r}. Try again later."
            raise ApiError(429, message, code="too_many_waiting", headers={"Retry-After": "5"})
        ticket = Ticket(model, key, limits.max_wait)
        self.waiting.add(ticket)
        if self._working is None:
            self._working = asyncio.create_task(self._work())
        return ticket

    def leave(self, ticket: Ticket | None) -> None:
        """Once a request has been answered, or its client is gone."""
        if ticket is None or ticket.let_in:
            self.entered.remove()
        else:
            self.waiting.remove(ticket)

    def words(self) -> str:
        return words(self._stage, self._supervisor.record, len(self.entered), self._turn_ends())

    # ----------------------------------------------------------------------------------------------------------------
    # While somebody waits
    # ----------------------------------------------------------------------------------------------------------------

    async def _work(self) -> None:
        swapping = asyncio.create_task(self._swap_while_wanted())
        stopping = asyncio.create_task(self._supervisor.stop_wanted())
        try:
            await asyncio.wait({swapping, stopping}, return_when=asyncio.FIRST_COMPLETED)
            if stopping.done():
                why = f"{stopping.result()}." if stopping.result() else ""
                self.waiting.refuse(not_ready(State.STOPPED, why))
            elif isinstance(error := swapping.exception(), Exception):
                self.waiting.refuse(api_error(error))
        finally:
            swapping.cancel()
            stopping.cancel()
            self._stage, self._closed = None, False
            # Others may have come between the last look and now.
            self._working = asyncio.create_task(self._work()) if self.waiting else None

    async def _swap_while_wanted(self) -> None:
        while self.waiting:
            self._settle_running()
            if (wanted := self._due()) is not None:
                await self._swap_to(wanted)
            else:
                await asyncio.sleep(LOOKS_EVERY_S)

    def _settle_running(self) -> None:
        """Those that wait for what runs are let in, or refused if it has ended for good."""
        supervisor, running = self._supervisor, self.running
        if supervisor.state is State.READY:
            self.waiting.let_in(running, self.entered)
        elif supervisor.state in ENDED and not supervisor.is_starting:
            self.waiting.refuse(not_ready(supervisor.state, supervisor.reason), running)

    def _keep_core_ahead(self) -> None:
        """From the first request that a launch answers, so that the next swap need not wait for a core to start."""
        supervisor = self._supervisor
        record = supervisor.record
        if supervisor.state is State.READY and record is not None and record.id != self._core_kept_for:
            self._core_kept_for = record.id
            supervisor.keep_core_ahead()

    def _turn_ends(self) -> float | None:
        """When the running model may be replaced; None if it does not serve."""
        supervisor = self._supervisor
        if supervisor.state is not State.READY or supervisor.plan is None or supervisor.record is None:
            return None
        return supervisor.record.since + supervisor.plan.profile.on_request.min_runtime

    def _due(self) -> Startable | None:
        turn_ends = self._turn_ends()
        if not self._supervisor.may_swap or (turn_ends is not None and time.time() < turn_ends):
            return None
        known = self._profiles.read()
        for model in self.waiting.models:
            if model in known and model != self.running:
                return known[model]
            self._refuse_deleted(model, known)
        return None

    def _refuse_deleted(self, model: str, known: Mapping[str, object]) -> None:
        try:
            check_name(model, *known)
        except ApiError as error:
            self.waiting.refuse(error, model)

    async def _swap_to(self, wanted: Startable) -> None:
        try:
            self._stage = Stage(Step.CHECKING, wanted.model)
            key = self.waiting.of(wanted.model)[0].key
            launch_id = self._home.new_launch_id()
            await asyncio.to_thread(_check_writable, self._home.launch(launch_id))
            judged = await self._supervisor.attempt(
                launch_id, wanted.revision, wanted.document, origin=Origin(requested_by=key)
            )
            if isinstance(judged, LaunchRecord):
                self._refuse(wanted, judged, "refused")
            elif self.waiting.of(wanted.model) and self._supervisor.may_swap:
                await self._replace(wanted, launch_id, key)
        except ApiError as error:
            self.waiting.refuse(error, wanted.model)
        finally:
            self._stage, self._closed = None, False

    async def _replace(self, wanted: Startable, launch_id: str, key: str) -> None:
        from appliance.supervisor.source import Source  # late: the first answer over HTTP does not wait for it

        supervisor, began = self._supervisor, time.perf_counter()
        before = self.running
        self._stage, self._closed = Stage(Step.DRAINING, wanted.model), True
        within_s = supervisor.plan.profile.on_request.drain_within if supervisor.plan is not None else 0.0
        launch = await supervisor.swap(
            Source(launch=launch_id, revision=wanted.revision, document=wanted.document),
            requested_by=key,
            within_s=within_s,
            quiet=self.entered.none_left,
            why=f"Replaced by {wanted.profile} {wanted.revision}, which a request asked for",
        )
        if launch is None:
            raise not_ready(supervisor.state, supervisor.reason)
        self._stage = Stage(Step.STARTING, wanted.model)
        await launch.settled.wait()
        if launch.record.state is State.READY:
            self._failures.forget(wanted.model)
            self._metrics.swapped("ready", time.perf_counter() - began)
            self.waiting.let_in(wanted.model, self.entered)
            self._keep_core_ahead()
        else:
            self._refuse(wanted, launch.record, "failed")
            self._stage = Stage(Step.RETURNING, before)
            while supervisor.is_starting:  # noqa: ASYNC110  several launches may follow each other
                await asyncio.sleep(LOOKS_EVERY_S)

    def _refuse(self, wanted: Startable, record: LaunchRecord, outcome: str) -> None:
        self._metrics.swapped(outcome)
        self.waiting.refuse(self._failures.add(wanted, record), wanted.model)


def _check_writable(folder: Path) -> None:
    """Before the running model makes room. Raises ApiError."""
    try:
        folder.mkdir()
        folder.rmdir()
    except OSError as error:
        message = f"No model can be started: {folder} cannot be written: {error.strerror}."
        raise ApiError(503, message, code="model_not_started") from None


def model_of(document: Mapping[str, Any]) -> str:
    return str(document.get("served-model-name") or document.get("name") or "")
