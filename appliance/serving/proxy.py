"""Requests that vLLM answers: let in like all others, passed on byte for byte, and told clearly when vLLM is gone.

It stands beside the web framework, not on it: a token passes through one read and one write.
"""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Any, Final

from litestar.connection import ASGIConnection
from litestar.enums import ScopeType
from litestar.types import Receive, Scope, Send

from appliance.engine_process.errors import EngineGoneError, TooManyRequestsError
from appliance.serving.access import Access
from appliance.serving.connection import disconnected, plain_path, read_raw
from appliance.serving.error_shape import error_frame, send_error
from appliance.serving.errors import ApiError, ClientGoneError, engine_gone, not_ready, not_with_model
from appliance.serving.stream import HEADERS as STREAM_HEADERS
from appliance.vllm.http import NO_ROUTE, Answer, UpstreamGoneError

if TYPE_CHECKING:
    from appliance.serving.front_door import FrontDoor
    from appliance.vllm.launch import VllmLaunch

# What a client may reach: everything that answers about the model, nothing that changes the engine. vLLM's adapters,
# sleep, profiling, remote calls, stored answers and development routes are not here, and so are not there.
POST: Final = frozenset({
    "/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/messages", "/v1/messages/count_tokens",
    "/v1/embeddings", "/v1/score", "/v1/rerank", "/v2/rerank", "/score", "/rerank", "/pooling", "/classify",
    "/tokenize", "/detokenize", "/v1/audio/transcriptions", "/v1/audio/translations",
})  # fmt: skip

# Requests may contain images and audio.
MAX_BODY_BYTES: Final = 64 << 20
REQUEST_HEADERS: Final = frozenset({b"content-type", b"accept", b"anthropic-version", b"anthropic-beta"})
RESPONSE_HEADERS: Final = frozenset({b"content-type", b"content-length", b"retry-after"})
STREAM: Final = b"text/event-stream"


class Proxy:
    """An ASGI application for the paths of POST while the engine is vLLM."""

    def __init__(self, front_door: FrontDoor, access: Access) -> None:
        self._front_door = front_door
        self._access = access

    def takes(self, scope: Scope) -> bool:
        http = scope["type"] == ScopeType.HTTP and scope["method"] == "POST" and plain_path(scope) in POST
        return http and self._front_door.on_vllm

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            self._access.require_key(ASGIConnection[Any, Any, Any, Any](scope))
            vllm = self._vllm()
            body = await read_raw(scope, receive, MAX_BODY_BYTES)
            await self._pass_on(vllm, scope, body, receive, send)
        except ClientGoneError:
            self._front_door.metrics.aborts.inc()
        except ApiError as error:
            await send_error(error, scope, send)

    def _vllm(self) -> VllmLaunch:
        supervisor = self._front_door.supervisor
        if supervisor.vllm is None:
            raise not_ready(supervisor.state, supervisor.reason, supervisor.drain_until)
        return supervisor.vllm

    async def _pass_on(self, vllm: VllmLaunch, scope: Scope, body: bytes, receive: Receive, send: Send) -> None:
        began = time.perf_counter()
        headers = [(name, value) for name, value in scope["headers"] if name in REQUEST_HEADERS]
        try:
            answer = await vllm.client.ask("POST", _target(scope), headers, body)
        except TooManyRequestsError as error:
            message = f"Too many requests: {error}."
            raise ApiError(429, message, code="too_many_requests", headers={"Retry-After": "1"}) from None
        except EngineGoneError as error:
            raise engine_gone(str(error)) from None
        # If the client disconnects, end the request in vLLM at once.
        gone = asyncio.ensure_future(disconnected(receive))
        gone.add_done_callback(lambda _: answer.close())
        reply = _Reply(send)
        try:
            await self._answer(answer, plain_path(scope), reply, began)
        except UpstreamGoneError as error:
            if gone.done():
                raise ClientGoneError from None
            ended = engine_gone(str(await vllm.client.gone(error)))
            if not reply.begun:
                raise ended from None
            await reply.break_off(error_frame(ended, scope))
        finally:
            gone.cancel()
            vllm.client.release(answer)

    async def _answer(self, answer: Answer, path: str, reply: _Reply, began: float) -> None:
        """Raises UpstreamGoneError, also where some of the answer has been sent; ApiError for a path that vLLM has not
        with this model."""
        await answer.head()
        headers = [(name, value) for name, value in answer.headers if name in RESPONSE_HEADERS]
        streams = any(name == b"content-type" and value.startswith(STREAM) for name, value in headers)
        metrics = self._front_door.metrics
        if streams:
            headers += [(name.lower().encode(), value.encode()) for name, value in STREAM_HEADERS.items()]
            await reply.start(answer.status, headers)
            async for piece in answer.pieces():
                if not reply.last:
                    metrics.first_token.observe(time.perf_counter() - began)
                await reply.send(piece)
            await reply.end()
        else:
            # Read it completely before sending anything, so that an interrupted answer can still become an error.
            body = b"".join([piece async for piece in answer.pieces()])
            if answer.status == 404 and body == NO_ROUTE:
                raise not_with_model(path)
            await reply.start(answer.status, headers)
            await reply.end(body)
        if answer.status == 200:
            metrics.request_time.observe(time.perf_counter() - began)


class _Reply:
    """What the client has been sent: `begun` once the status is out, and the `last` piece of the body."""

    def __init__(self, send: Send) -> None:
        self._send = send
        self.begun = False
        self.last = b""

    async def start(self, status: int, headers: list[tuple[bytes, bytes]]) -> None:
        self.begun = True
        await self._send({"type": "http.response.start", "status": status, "headers": headers})

    async def send(self, piece: bytes) -> None:
        self.last = piece
        await self._send({"type": "http.response.body", "body": piece, "more_body": True})

    async def end(self, body: bytes = b"") -> None:
        await self._send({"type": "http.response.body", "body": body, "more_body": False})

    async def break_off(self, frame: bytes) -> None:
        """End a stream in an error, as a frame of its own: what came last may have been cut in the middle of one."""
        broken = b"" if self.last.endswith(b"\n\n") or not self.last else b"\n\n"
        await self.end(broken + frame)


def _target(scope: Scope) -> bytes:
    query, path = scope["query_string"], plain_path(scope).encode()
    return path + b"?" + query if query else path
