"""The routes outside /v1: health, state, events, attempts, metrics."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any

import msgspec
from litestar import Request, Response, get, post
from litestar.params import FromQuery

from appliance.launches.event_stream import EventStream, Told, UnknownEventError
from appliance.launches.folder import LAUNCH_ID
from appliance.protocol import ApplianceState, Finding, LaunchRecord, State
from appliance.serving.body import read_body
from appliance.serving.errors import ApiError, bad_request
from appliance.serving.fields import decode
from appliance.serving.openapi.answers import Health
from appliance.serving.parts import TheFrontDoor
from appliance.serving.stream import HEARTBEAT, FrameStream, named_frame, sse

HEARTBEAT_S = 10.0
LONGEST_DRAIN_S = 86400
LONGEST_WHY = 500
METRICS_TYPE = "text/plain; version=0.0.4; charset=utf-8"


class AttemptFields(msgspec.Struct, frozen=True, kw_only=True):
    """`record`: keep a refusal as a launch."""

    launch: str
    profile: dict[str, Any]
    revision: str = ""
    record: bool = True


class DrainFields(msgspec.Struct, frozen=True, kw_only=True):
    """`why` is what clients and the history are told, such as "Restarted by admin"."""

    within_s: float
    why: str = ""


class AttemptFindings(msgspec.Struct, frozen=True, kw_only=True):
    findings: list[Finding]


@get("/", summary="Whether the front door answers, in words", answer="text/plain")
async def index() -> Response[bytes]:
    """Ollama's clients look here before anything else."""
    return Response(b"Ingot is running. Its API is described at /docs.\n", media_type="text/plain")


@get("/health", summary="Whether the engine answers", answer=Health, other_answers={503: Health})
async def health(front_door: TheFrontDoor) -> Response[dict[str, str]]:
    """200 only when the engine has generated real tokens and takes requests."""
    supervisor = front_door.supervisor
    status = 200 if supervisor.state is State.READY else 503
    return Response({"state": supervisor.state, "reason": supervisor.reason}, status_code=status)


@get("/metrics", summary="Metrics in Prometheus' text format", answer="text/plain")
async def metrics(front_door: TheFrontDoor) -> Response[bytes]:
    """Our metrics, followed by those of a running vLLM under their own names."""
    vllm = front_door.supervisor.vllm
    theirs = await vllm.metrics() if vllm is not None else b""
    return Response(front_door.metrics.text() + theirs, media_type=METRICS_TYPE)


@get("/appliance/state", summary="The present state", answer=ApplianceState)
async def state(front_door: TheFrontDoor) -> ApplianceState:
    return front_door.supervisor.describe()


@get("/appliance/events", summary="Changes of the state, as events", answer="text/event-stream")
async def events(request: Request[Any, Any, Any], front_door: TheFrontDoor, after: FromQuery[str] = "") -> FrameStream:
    """`Last-Event-ID`, or `?after=` for those who cannot set headers, names the last event that was seen."""
    last_seen = request.headers.get("last-event-id") or after or None
    stream = front_door.supervisor.stream
    try:
        stream.check(last_seen)
    except UnknownEventError as error:
        raise bad_request(f"{error}.", "Last-Event-ID", "unknown_event") from None
    return sse(_frames(stream, last_seen))


async def _frames(stream: EventStream, after: str | None) -> AsyncIterator[bytes]:
    follow = stream.follow(after)
    following: asyncio.Future[Told] | None = None
    try:
        while True:
            following = following or asyncio.ensure_future(anext(follow))
            done, _ = await asyncio.wait({following}, timeout=HEARTBEAT_S)
            if not done:
                yield HEARTBEAT
                continue
            try:
                told = following.result()
            except StopAsyncIteration:
                return
            following = None
            yield named_frame(_kind(told), told.event, told.id)
    finally:
        if following is not None:
            following.cancel()
            with contextlib.suppress(asyncio.CancelledError, StopAsyncIteration):
                await following
        await follow.aclose()


def _kind(told: Told) -> str:
    tag = told.event.body.__struct_config__.tag
    assert isinstance(tag, str)
    return tag


@post(
    "/appliance/drain",
    status_code=202,
    summary="End the launch once its requests have finished",
    body=DrainFields,
    answer=ApplianceState,
)
async def drain(request: Request[Any, Any, Any], front_door: TheFrontDoor) -> ApplianceState:
    """Refuse new requests, and end the launch once those in flight have finished, or after `within_s` seconds. With 0
    they are ended at once, and so is a launch that does not serve yet; with more, such a launch goes on."""
    fields = decode(await read_body(request), DrainFields)
    if not 0 <= fields.within_s <= LONGEST_DRAIN_S:
        most = f"{LONGEST_DRAIN_S:,}"
        raise bad_request(f"within_s: {fields.within_s:g} is out of range; use 0 to {most}.", "within_s")
    if len(fields.why) > LONGEST_WHY or not fields.why.isprintable():
        raise bad_request(f"why: use up to {LONGEST_WHY} printable characters.", "why")
    if fields.within_s:
        front_door.supervisor.drain(fields.within_s, fields.why)
    else:
        front_door.supervisor.stop_now(fields.why)
    return front_door.supervisor.describe()


@post(
    "/appliance/attempts",
    status_code=200,
    summary="Run preflight for a profile",
    body=AttemptFields,
    answer=AttemptFindings,
    errors=(409,),
    other_answers={422: LaunchRecord},
)
async def attempt(
    request: Request[Any, Any, Any], front_door: TheFrontDoor
) -> Response[AttemptFindings | LaunchRecord]:
    fields = decode(await read_body(request), AttemptFields)
    if not LAUNCH_ID.fullmatch(fields.launch):
        allowed = "up to 100 characters of A-Z, a-z, 0-9, '.', '_' and '-', the first a letter or a digit"
        raise bad_request(f"launch: {fields.launch[:100]!r} is not a valid id; use {allowed}.", "launch")
    try:
        outcome = await front_door.supervisor.attempt(
            fields.launch, fields.revision, fields.profile, record=fields.record
        )
    except FileExistsError:
        raise ApiError(409, f"There is already a launch {fields.launch!r}.", param="launch") from None
    if isinstance(outcome, LaunchRecord):
        return Response(outcome, status_code=422)
    return Response(AttemptFindings(findings=list(outcome.findings)))
