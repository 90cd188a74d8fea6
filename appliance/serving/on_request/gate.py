"""The way in for requests that name a model: at once where it runs, or after a wait while another one makes room.

It stands before the web framework and vLLM's proxy, so that neither knows of it: a request that has waited reaches them
as if it had just come. Where no profile may be started by a request, nothing is read here.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Final

import msgspec
from litestar.connection import ASGIConnection
from litestar.enums import ScopeType
from litestar.types import ASGIApp, Receive, Scope, Send

from appliance.checkpoint.errors import CheckpointError
from appliance.checkpoint.folder import locate
from appliance.checkpoint.grammar import validate
from appliance.engines import engine_named
from appliance.profile import document as documents
from appliance.serving import proxy
from appliance.serving.access import Access, key_of
from appliance.serving.body import beside_others, without_mark
from appliance.serving.connection import disconnected, plain_path, read_raw
from appliance.serving.error_shape import send_error
from appliance.serving.errors import MAX_BODY_BYTES, ApiError, ClientGoneError
from appliance.serving.on_request.begun_stream import BegunStream, comment_every_s
from appliance.serving.on_request.readable import Asker, check_readable
from appliance.serving.on_request.startable_profiles import model_named
from appliance.serving.reading import ModelFormats
from appliance.serving.served_model import check_name
from appliance.serving.structured import CheckedGrammars

if TYPE_CHECKING:
    from collections.abc import Mapping

    from appliance.profile.startable import Startable
    from appliance.serving.front_door import FrontDoor
    from appliance.serving.on_request.waiting import Ticket

OLLAMA_ANSWERS: Final = frozenset({"/api/chat", "/api/generate"})
"""They stream unless the request says otherwise."""
OLLAMA: Final = frozenset({*OLLAMA_ANSWERS, "/api/embed", "/api/embeddings"})
STREAMING: Final = frozenset({
    "/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/messages", *OLLAMA_ANSWERS,
})  # fmt: skip
"""Others have no stream, whatever the request says."""
COUNTS: Final = frozenset({"/tokenize", "/detokenize", "/v1/messages/count_tokens"})
"""Too little to start a model for."""
NATIVE: Final = frozenset({*STREAMING, *OLLAMA, "/v1/embeddings"})
MULTIPART: Final = frozenset({"/v1/audio/transcriptions", "/v1/audio/translations"})
PATHS: Final = (NATIVE | proxy.POST) - MULTIPART


class Named(msgspec.Struct):
    """What counts of a request here."""

    model: str | None = None
    stream: bool | None = None


class Gate:
    """An ASGI application around `app`."""

    def __init__(self, app: ASGIApp, front_door: FrontDoor, access: Access) -> None:
        self._app = app
        self._front_door = front_door
        self._access = access
        self._grammars = CheckedGrammars(validate)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != ScopeType.HTTP or scope["method"] != "POST" or (path := plain_path(scope)) not in PATHS:
            await self._app(scope, receive, send)
            return
        known = self._front_door.startable.read()
        if not known:
            with self._front_door.swapper.entered:
                await self._app(scope, receive, send)
            return
        try:
            self._access.require_key(ASGIConnection[Any, Any, Any, Any](scope))
            body = await read_raw(scope, receive, _max_bytes(known))
            named = await beside_others(body, lambda: _read(body))
            model = self._model(named, path, known)
            if self._must_start(model, known):
                await self._check(path, body, scope, known[model])
            await self._let_in(model, path, named, scope, _Replayed(body, receive), send)
        except ClientGoneError:
            pass
        except ApiError as error:
            await send_error(error, scope, send)

    def _model(self, named: Named | None, path: str, known: Mapping[str, Startable]) -> str:
        """Raises ApiError for a model that there is not, or that cannot answer this."""
        swapper = self._front_door.swapper
        if named is None or named.model is None:
            return swapper.coming
        names = {**known, swapper.running: None}
        model = model_named(named.model, names, tagged=path in OLLAMA) or named.model
        check_name(model, *filter(None, names))
        if swapper.lets_in(model) or model not in known:
            return model
        own_server = engine_named(known[model].engine).own_server
        if path in COUNTS:
            message = f"The model {model!r} is not running. A request for an answer starts it."
            raise ApiError(503, message, param="model", code="model_not_running")
        if path not in (proxy.POST | OLLAMA if own_server else NATIVE):
            message = f"{path} is not available with the engine of the model {model!r}."
            raise ApiError(501, message, code="not_with_this_engine")
        return model

    async def _check(self, path: str, body: bytes, scope: Scope, startable: Startable) -> None:
        """Raises ApiError for a request that its model would refuse once it runs."""
        asker = Asker(self._front_door.responses, key_of(ASGIConnection(scope)))
        home = self._front_door.home

        def read_formats() -> ModelFormats | None:
            try:
                profile = documents.load(startable.document)
                return ModelFormats.of_folder(profile, locate(profile.model.path, home))
            except (CheckpointError, OSError):
                return None  # the start will say why

        await check_readable(path, body, asker, self._grammars, read_formats, strict=startable.strict_requests)

    def _must_start(self, model: str, known: Mapping[str, Startable]) -> bool:
        """Whether a request for it waits for a native engine, which is still to start or does so already."""
        native = model in known and not engine_named(known[model].engine).own_server
        return native and not self._front_door.swapper.lets_in(model)

    async def _let_in(
        self, model: str, path: str, named: Named | None, scope: Scope, receive: _Replayed, send: Send
    ) -> None:
        swapper = self._front_door.swapper
        ticket = swapper.enter(model, key_of(ASGIConnection(scope)))
        try:
            if ticket is None:
                await self._app(scope, receive, send)
                return
            begun = BegunStream(model, scope, send) if _streams(named, path) else None
            try:
                await self._wait(ticket, begun, receive)
            except ApiError as error:
                if begun is None or not begun.begun or isinstance(error, ClientGoneError):
                    raise
                await begun.end(error)
                return
            await self._app(scope, receive, begun.pass_on if begun is not None and begun.begun else send)
        finally:
            swapper.leave(ticket)

    async def _wait(self, ticket: Ticket, begun: BegunStream | None, receive: _Replayed) -> None:
        """Raises ApiError, also if the client disconnects."""
        gone = asyncio.ensure_future(disconnected(receive.rest))
        every_s = comment_every_s(begun)
        try:
            while not ticket.outcome.done():
                left = ticket.seconds_left
                await asyncio.wait(
                    {ticket.outcome, gone}, timeout=min(left, every_s), return_when=asyncio.FIRST_COMPLETED
                )
                if ticket.outcome.done():
                    break
                if gone.done():
                    raise ClientGoneError
                words = self._front_door.swapper.words()
                if not ticket.seconds_left:
                    message = f"The model {ticket.model!r} did not run within {ticket.max_wait_s:,.0f} s: {words}."
                    raise ApiError(503, message, param="model", code="waited_too_long", headers={"Retry-After": "5"})
                if begun is not None:
                    await begun.comment(words)
            ticket.outcome.result()
        finally:
            gone.cancel()


class _Replayed:
    """The body that has been read, and then whatever else the client sends."""

    def __init__(self, body: bytes, rest: Receive) -> None:
        self.rest = rest
        self._body: bytes | None = body

    async def __call__(self) -> Any:
        if self._body is None:
            return await self.rest()
        body, self._body = self._body, None
        return {"type": "http.request", "body": body, "more_body": False}


def _streams(named: Named | None, path: str) -> bool:
    if named is None or path not in STREAMING:
        return False
    return path in OLLAMA_ANSWERS if named.stream is None else named.stream


def _read(body: bytes) -> Named | None:
    """None of what is no such request: its route says what is wrong with it."""
    try:
        return msgspec.json.decode(without_mark(body), type=Named)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None


def _max_bytes(known: Mapping[str, Startable]) -> int:
    larger = any(engine_named(each.engine).own_server for each in known.values())
    return proxy.MAX_BODY_BYTES if larger else MAX_BODY_BYTES
