"""Errors in the shape of the API that was asked, by the request's path: OpenAI's unless it is another's."""

from __future__ import annotations

from typing import Any, Final

import msgspec
from litestar import Request, Response
from litestar.types import Scope, Send

from appliance.serving.anthropic import errors as anthropic
from appliance.serving.errors import ApiError, api_error
from appliance.serving.request_id import request_id
from appliance.serving.stream import frame, named_frame

VERSION_HEADER: Final = "anthropic-version"


def error_response(request: Request[Any, Any, Any], error: Exception) -> Response[bytes]:
    """For every exception that leaves a route."""
    refused = api_error(error)
    body = error_body(refused, request.scope)
    return Response(body, status_code=refused.status, media_type="application/json", headers=refused.headers)


def error_body(error: ApiError, scope: Scope) -> bytes:
    if asks_anthropic(scope):
        return msgspec.json.encode(anthropic.error_content(error, request_id(scope)))
    return msgspec.json.encode({"error": _named(error)} if asks_ollama(scope) else error.content)


def _named(error: ApiError) -> str:
    """The message, with the field in front where it does not begin with it: Ollama's shape has no other place."""
    param = error.param
    if error.status != 400 or param is None or error.message.startswith((f"{param}:", f"{param} ", f'"{param}" ')):
        return error.message
    return f"{param}: {error.message}"


async def send_error(error: ApiError, scope: Scope, send: Send) -> None:
    """As an answer, where no route is asked."""
    body = error_body(error, scope)
    headers = [(name.lower().encode(), value.encode()) for name, value in error.headers.items()]
    headers += [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
    await send({"type": "http.response.start", "status": error.status, "headers": headers})
    await send({"type": "http.response.body", "body": body, "more_body": False})


def error_frame(error: ApiError, scope: Scope) -> bytes:
    """The end of a stream."""
    if asks_anthropic(scope):
        return anthropic.error_event(error, request_id(scope))
    if asks_ollama(scope):
        return error_body(error, scope) + b"\n"
    if scope["path"].startswith("/v1/responses"):
        told = {"type": "error", "code": error.code, "message": error.message, "param": error.param}
        return named_frame("error", {**told, "sequence_number": 0}, None)
    return frame(error.content)


def read_error(status: int, body: bytes) -> ApiError:
    """The error that a route has answered with, whatever its API."""
    try:
        told = msgspec.json.decode(body)["error"]
    except (msgspec.DecodeError, KeyError, TypeError):
        return ApiError(status, body.decode(errors="replace")[:1000])
    if not isinstance(told, dict):
        return ApiError(status, str(told))
    return ApiError(status, str(told.get("message")), param=told.get("param"), code=told.get("code"))


def asks_anthropic(scope: Scope) -> bool:
    """Anthropic's API shares the path of the models with OpenAI's; its clients name its version."""
    path: str = scope["path"]
    versioned = any(name == VERSION_HEADER.encode() for name, _ in scope["headers"])
    return path.startswith("/v1/messages") or (versioned and path.startswith("/v1/models"))


def asks_ollama(scope: Scope) -> bool:
    return scope["path"].startswith("/api/")
