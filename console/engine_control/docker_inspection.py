"""Translates the output of `docker inspect` and `docker events`."""

from __future__ import annotations

import signal
from typing import Any, Final

from appliance.exit_status import how_it_ended, signal_name
from appliance.protocol import Finding, Fix, Severity
from console.engine_control.base import EngineEvent, EngineStatus
from console.engine_control.docker_output import moment
from console.engine_control.docker_problems import problem_of
from console.engine_control.ending import KILLED, NO_MEMORY, OUT_OF_MEMORY
from console.formats import gib

RECREATE: Final = "docker compose up -d --force-recreate engine"
STOP: Final = "docker compose stop engine"

STARTS_WITHIN_S: Final = 0.5
"""Docker notes a container's start when its process runs already, and may have said its last words."""

DOCKER_EVENTS: Final[dict[str, tuple[str, bool]]] = {
    "create": ("created", False),
    "start": ("started", False),
    "die": ("ended: {end}", True),
    "kill": ("sent {signal}", False),
    "oom": ("a process was killed: out of memory", True),
    "pause": ("paused", True),
    "unpause": ("unpaused", False),
    "rename": ("renamed from {old}", False),
    "destroy": ("removed", True),
    "health_status: healthy": ("healthy", False),
    "health_status: unhealthy": ("unhealthy", True),
}
"""Docker's action -> our text, and whether it is a failure."""


def read_inspection(inspection: dict[str, Any], *, asked: bool = False) -> EngineStatus:
    """`asked`: this console requested the end. A container that ran out of memory may still have exit code 0, from a
    parent process that noticed, so `OOMKilled` decides. If Docker could not start a container, it stays in `created` or
    `exited` with an error. While Docker waits to restart it, it calls it running, which it is not."""
    state = inspection["State"]
    name = inspection["Name"].lstrip("/")
    restarting = bool(state.get("Restarting"))
    running = bool(state.get("Running")) and not restarting
    code = None if running else int(state.get("ExitCode", 0))
    asked = asked or code == 128 + signal.SIGTERM
    out_of_memory = bool(state.get("OOMKilled")) and not running and not asked
    ended = None
    if code is not None and state.get("Status") != "created" and not state.get("Error"):
        ended = OUT_OF_MEMORY if out_of_memory else how_it_ended(128 - code if code > 128 else code)
        if asked:
            code = 0
    since = moment(state.get("StartedAt", ""))
    return EngineStatus(
        running=running,
        who=f"container {name}",
        since=since,
        output_since=None if since is None else since - STARTS_WITHIN_S,
        ended=ended,
        exit_code=code if ended or state.get("Error") else None,
        out_of_memory=out_of_memory,
        health=state.get("Health", {}).get("Status"),
        problem=_problem(inspection, name, ended, asked=asked),
    )


def _problem(inspection: dict[str, Any], name: str, ended: str | None, *, asked: bool) -> Finding | None:
    state = inspection["State"]
    if state.get("Status") in ("removing", "dead"):
        return Finding(
            id="container-removing",
            severity=Severity.ERROR,
            message=f"Docker is removing the container {name}, or failed to remove it.",
            fix=Fix(text="Recreate it. If Docker refuses, restart Docker first.", command=RECREATE),
        )
    if state.get("Paused"):
        return Finding(
            id="container-paused",
            severity=Severity.ERROR,
            message=f"The container {name} is paused.",
            fix=Fix(text="Unpause it, or restart the engine.", command=f"docker unpause {name}"),
        )
    if not state.get("Running") and state.get("Error"):
        return problem_of(str(state["Error"]), name)
    if ended == OUT_OF_MEMORY:
        return _out_of_memory(name, int(inspection.get("HostConfig", {}).get("Memory") or 0))
    if state.get("Restarting"):
        times = inspection.get("RestartCount", 0)
        return Finding(
            id="container-restarting",
            severity=Severity.ERROR,
            message=f"The container {name} ends as soon as it starts ({ended}). Docker has restarted it {times:,} "
            f"{'time' if times == 1 else 'times'} and keeps trying.",
            fix=Fix(text="Its last output says why. To end the loop, stop the engine or run this.", command=STOP),
        )
    if ended == how_it_ended(-signal.SIGKILL) and not asked:
        return KILLED
    return None


def _out_of_memory(name: str, limit: int) -> Finding:
    if not limit:
        return NO_MEMORY
    return Finding(
        id="out-of-memory",
        severity=Severity.ERROR,
        message=f"The container {name} exceeded its memory limit of {gib(limit)} and was killed.",
        fix=Fix(
            text="Raise INGOT_ENGINE_MEMORY in .env if the machine has more memory, and recreate the container. "
            "Otherwise choose a profile that needs less.",
            command="docker compose up -d engine",
        ),
    )


def read_event(event: dict[str, Any], container: str, *, asked: bool = False) -> EngineEvent | None:
    """None for events that are not shown, and for other containers: Docker's filter compares only the beginning of a
    name. `asked`: this console requested the end."""
    attributes = event.get("Actor", {}).get("Attributes", {})
    action = event.get("Action", "")
    known = DOCKER_EVENTS.get(action)
    if known is None or attributes.get("name") != container:
        return None
    text, failed = known
    code = int(attributes.get("exitCode", 0))
    number = attributes.get("signal", "")
    words = text.format(
        end=how_it_ended(128 - code if code > 128 else code),
        signal=signal_name(int(number)) if number.isdecimal() else number or "a signal",
        old=attributes.get("oldName", "").lstrip("/"),
    )
    if action == "die" and (asked or code in (0, 128 + signal.SIGTERM)):
        failed = False
    return EngineEvent(event.get("timeNano", 0) / 1e9, words, failed)
