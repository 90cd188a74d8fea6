"""Runs the engine as the container `ingot-engine`. Calls go by name through the low-level client, since the gate in
front of Docker lets only that one name through; they block, so each is made in a thread."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable
from datetime import datetime
from typing import Any, TypeVar

import docker
from docker.errors import APIError, DockerException, NotFound
from requests.exceptions import RequestException

from appliance.supervisor.deadlines import STOPPED_WITHIN_S
from console.engine_control.base import EngineControlError, EngineStatus
from console.engine_control.process import how_it_ended

T = TypeVar("T")

# Spoken since Docker 25. Asking the daemon for its version would be one more call that the gate lets through.
API_VERSION = "1.44"
STOP_WITHIN_S = int(STOPPED_WITHIN_S)
CALL_TIMEOUT_S = STOP_WITHIN_S + 15


class DockerControl:
    kind = "docker"

    def __init__(self, container: str, connect: Callable[[], Any] | None = None) -> None:
        self._container = container
        self._connect = connect or (lambda: docker.from_env(version=API_VERSION, timeout=CALL_TIMEOUT_S).api)
        self._api: Any = None
        self._one_at_a_time = asyncio.Lock()
        self._stopped = False

    async def status(self) -> EngineStatus:
        inspection = await self._call(lambda api: api.inspect_container(self._container))
        return read_inspection(inspection, asked=self._stopped)

    async def start(self) -> None:
        async with self._one_at_a_time:
            self._stopped = False
            await self._call(lambda api: api.start(self._container))

    async def stop(self) -> None:
        async with self._one_at_a_time:
            self._stopped = True
            await self._call(lambda api: api.stop(self._container, timeout=STOP_WITHIN_S))

    async def restart(self) -> None:
        async with self._one_at_a_time:
            self._stopped = False
            await self._call(lambda api: api.restart(self._container, timeout=STOP_WITHIN_S))

    async def logs(self, tail: int = 200) -> list[str]:
        raw: bytes = await self._call(
            lambda api: api.logs(self._container, stdout=True, stderr=True, tail=tail, follow=False)
        )
        return raw.decode(errors="replace").splitlines()

    async def close(self, *, keep_engine: bool = False) -> None:
        """The container is Compose's to end, not the console's."""
        if self._api is not None:
            await asyncio.to_thread(self._api.close)
            self._api = None

    async def _call(self, ask: Callable[[Any], T]) -> T:
        try:
            return await asyncio.to_thread(self._ask, ask)
        except NotFound as error:
            raise EngineControlError(
                f"There is no container named {self._container}: start the engine with `docker compose up -d engine`."
            ) from error
        except APIError as error:
            raise EngineControlError(
                f"Docker refused to act on {self._container}: {error.explanation or error}. "
                f"`docker inspect {self._container}` shows its state."
            ) from error
        except (DockerException, RequestException, OSError) as error:
            raise EngineControlError(
                f"Docker cannot be reached: {error}. Look whether it runs, and whether DOCKER_HOST points at the gate."
            ) from error

    def _ask(self, ask: Callable[[Any], T]) -> T:
        if self._api is None:
            self._api = self._connect()
        return ask(self._api)


def read_inspection(inspection: dict[str, Any], *, asked: bool = False) -> EngineStatus:
    """What `docker inspect` says, in our words; `asked`: the end was asked for here. A container that ran out of memory
    may still have exit code 0 of a parent that noticed: `OOMKilled` is what counts. One that Docker could not start is
    left in `created`. An exit code above 128 is a signal's number and 128."""
    state = inspection["State"]
    running = bool(state.get("Running"))
    out_of_memory = bool(state.get("OOMKilled"))
    code = None if running else int(state.get("ExitCode", 0))
    ended = None
    if not running and state.get("Status") != "created":
        assert code is not None
        ended = "out of memory" if out_of_memory else how_it_ended(128 - code if code > 128 else code)
        if asked or code == 128 + signal.SIGTERM:
            code = 0
    elif not running and state.get("Error"):
        ended = str(state["Error"])
        code = code or 1
    health = state.get("Health", {}).get("Status")
    return EngineStatus(
        running=running,
        who=f"container {inspection['Name'].lstrip('/')}",
        since=_moment(state.get("StartedAt", "")) if running else None,
        ended=ended,
        exit_code=code if ended else None,
        out_of_memory=out_of_memory,
        health=health,
    )


def _moment(stamp: str) -> float | None:
    """Docker's times have nine digits of a second; Python reads six."""
    if not stamp or stamp.startswith("0001"):
        return None
    whole, _, rest = stamp.partition(".")
    return datetime.fromisoformat(f"{whole}.{rest.rstrip('Z')[:6] or '0'}+00:00").timestamp()
