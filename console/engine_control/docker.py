"""Runs the engine as a container, addressed by its name: the gate in front of Docker allows only that one."""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import AsyncGenerator, Iterator, Mapping
from contextlib import aclosing, contextmanager
from typing import Final
from urllib.parse import quote

import msgspec

from appliance.engine_process.deadlines import STOPPED_WITHIN_S
from appliance.protocol import Finding, Severity
from console.engine_control.base import TAIL_LINES, EngineControlError, EngineEvent, EngineStatus, OutputLine
from console.engine_control.docker_api import DockerApi, DockerHostError, DockerRefusal, DockerUnreachable
from console.engine_control.docker_inspection import DOCKER_EVENTS, read_event, read_inspection
from console.engine_control.docker_output import LineReader, Place, StampedLine
from console.engine_control.docker_problems import problem_of, refused_by_gate, unreachable

log = logging.getLogger(__name__)

STOP_WITHIN_S: Final = int(STOPPED_WITHIN_S)
ACTS_WITHIN_S: Final = STOP_WITHIN_S + 15
LOOKS_EVERY_S: Final = 0.25
"""How often following the output checks whether a stopped container runs again."""

AGAIN_AFTER_S: Final = 0.5
FROM_GATE: Final = frozenset({403, 429, 502, 503, 504})
"""Statuses from the gate itself: Docker returns none of them for these calls."""


def events_path(container: str) -> str:
    """The only events query that the gate allows."""
    actions = sorted({action.partition(":")[0] for action in DOCKER_EVENTS})
    filters = {"container": [container], "event": actions, "type": ["container"]}
    return f"/events?filters={quote(msgspec.json.encode(filters), safe='')}"


class DockerControl:
    kind = "docker"

    def __init__(self, container: str, environ: Mapping[str, str] = os.environ) -> None:
        try:
            self._docker = DockerApi.from_environment(environ)
        except DockerHostError as error:
            raise EngineControlError(
                Finding(id="docker-host", severity=Severity.ERROR, message=str(error), field="DOCKER_HOST")
            ) from error
        self._container = container
        self._path = f"/containers/{quote(container, safe='')}"
        self._one_at_a_time = asyncio.Lock()
        self._acts = 0
        self._stopped = False
        """Whether the container's current or last run was stopped by this console."""

    async def status(self) -> EngineStatus:
        acts = self._acts
        with self._explained():
            try:
                inspection = await self._docker.get(f"{self._path}/json")
            except DockerRefusal as error:
                if error.status != 404:
                    raise
                return EngineStatus(running=False, problem=problem_of(str(error), self._container))
        status = read_inspection(inspection, asked=self._stopped)
        if status.running and acts == self._acts:
            self._runs_again()
        return status

    async def start(self) -> None:
        await self._act("start", stopping=False)

    async def stop(self) -> None:
        await self._act(f"stop?t={STOP_WITHIN_S}", stopping=True)

    async def restart(self) -> None:
        await self._act(f"restart?t={STOP_WITHIN_S}", stopping=True)
        self._stopped = False

    async def follow(self, tail: int = TAIL_LINES) -> AsyncGenerator[OutputLine]:
        """Docker's log stream ends with the container. Resume it where it was as soon as the container runs again, or
        from the beginning if another container has the name."""
        place, run = Place(), ("", "")
        while True:
            try:
                found = await self._docker.get(f"{self._path}/json")
                began = found["Id"], found["State"]["StartedAt"]
                if began != run or found["State"]["Running"]:
                    if found["Id"] != place.container:
                        place = Place(found["Id"])
                    async with aclosing(self._lines(place, tail)) as lines:
                        async for line in lines:
                            yield OutputLine(line.at, line.text)
                    run = began
            except (DockerUnreachable, DockerRefusal) as error:
                log.debug("The output of %s was interrupted: %s", self._container, error)  # status() reports it
            await asyncio.sleep(LOOKS_EVERY_S)

    async def events(self) -> AsyncGenerator[EngineEvent]:
        """Events that happen while Docker cannot be reached are missed; status() reports their result."""
        while True:
            try:
                async with self._docker.stream(events_path(self._container)) as (_, blocks):
                    rest = b""
                    async for block in blocks:
                        *documents, rest = (rest + block).split(b"\n")
                        for document in filter(None, documents):
                            details = msgspec.json.decode(document)
                            if event := read_event(details, self._container, asked=self._stopped):
                                if details["Action"] == "start":
                                    self._runs_again()
                                yield event
            except (DockerUnreachable, DockerRefusal, msgspec.DecodeError) as error:
                log.debug("The events of %s were interrupted: %s", self._container, error)
            await asyncio.sleep(AGAIN_AFTER_S)

    async def close(self, *, keep_engine: bool = False) -> None:
        """Leave the container running: Compose manages it."""
        await self._docker.close()

    async def _lines(self, place: Place, tail: int) -> AsyncGenerator[StampedLine]:
        async with self._docker.stream(f"{self._path}/logs?{place.query(tail)}") as (media_type, blocks):
            reader = LineReader(media_type)
            async for block in blocks:
                for line in reader.feed(block):
                    if place.is_new(line):
                        yield line

    async def _act(self, call: str, *, stopping: bool) -> None:
        async with self._one_at_a_time:
            before, self._stopped = (
                self._stopped,
                stopping,
            )  # before the call: the container's end may be reported before the call returns
            self._acts += 1
            try:
                with self._explained():
                    await self._docker.post(f"{self._path}/{call}", ACTS_WITHIN_S)
            except EngineControlError:
                self._stopped = before
                raise

    def _runs_again(self) -> None:
        """Somebody else started it, so the end of that run was not requested here."""
        if not self._one_at_a_time.locked():
            self._stopped = False

    @contextmanager
    def _explained(self) -> Iterator[None]:
        try:
            yield
        except DockerRefusal as error:
            if error.status in FROM_GATE:
                raise EngineControlError(refused_by_gate(error.status, str(error))) from error
            raise EngineControlError(problem_of(str(error), self._container)) from error
        except DockerUnreachable as error:
            raise EngineControlError(unreachable(self._docker.host, str(error))) from error
