"""The front door's routes, and what applies to all: access, size limits, errors."""

from __future__ import annotations

from typing import Final

from litestar import Litestar, Router
from litestar.di import Provide
from litestar.enums import ScopeType
from litestar.types import ASGIApp, Message, Receive, Scope, Send

from appliance.profile.shown import MAX_SHOWN
from appliance.serving.access import Access, guard
from appliance.serving.anthropic.routes import ROUTES as ANTHROPIC
from appliance.serving.appliance_routes import attempt, drain, events, health, index, metrics, state
from appliance.serving.chat import chat_completions
from appliance.serving.completions import completions
from appliance.serving.embeddings import embeddings
from appliance.serving.error_shape import error_response, send_error
from appliance.serving.errors import MAX_BODY_BYTES, ApiError
from appliance.serving.front_door import FrontDoor
from appliance.serving.hardware_route import hardware
from appliance.serving.host_header import malformed_host
from appliance.serving.models import list_models, show_model
from appliance.serving.ollama.routes import ROUTES as OLLAMA
from appliance.serving.on_request.gate import Gate
from appliance.serving.openapi.route import docs, openapi
from appliance.serving.pages import AllowedOrigins, open_to_pages
from appliance.serving.proxy import POST, Proxy
from appliance.serving.responses.routes import create_response, delete_response, list_input_items, show_response
from appliance.serving.tokenize import detokenize, tokenize

# What belongs to no API is not counted among its failures, and no business of other sites' pages.
APIS: Final = ("/v1/", "/api/")
PLAIN: Final = "identity"
CODINGS: Final = frozenset({"gzip", "x-gzip", "deflate", "br", "zstd", "compress", "x-compress"})
"""What makes a body unreadable here. Some clients name the character set as a coding, which changes nothing."""


def make_app(front_door: FrontDoor, access: Access, allowed: AllowedOrigins) -> ASGIApp:
    app = make_routes(front_door, access)
    proxy = Proxy(front_door, access)

    async def answered(scope: Scope, receive: Receive, send: Send) -> None:
        await (proxy if proxy.takes(scope) else app)(scope, receive, send)

    gate = refuse_compressed(Gate(answered, front_door, access))
    for_pages = open_to_pages(gate, allowed)

    async def let_in(scope: Scope, receive: Receive, send: Send) -> None:
        if (host := malformed_host(scope)) is not None:
            message = f"{host[:MAX_SHOWN]!r} is not a valid Host header. Use an address such as 127.0.0.1:8000."
            await send_error(ApiError(400, message, code="invalid_host"), scope, send)
        else:
            await (for_pages if is_of_api(scope) else gate)(scope, receive, send)

    return counted(let_in, front_door)


def is_of_api(scope: Scope) -> bool:
    return scope["type"] == ScopeType.HTTP and (scope["path"].startswith(APIS) or scope["path"] in POST)


def refuse_compressed(app: ASGIApp) -> ASGIApp:
    """Nothing here decompresses a body."""

    async def answer(scope: Scope, receive: Receive, send: Send) -> None:
        if (coding := _coding(scope)) is None:
            await app(scope, receive, send)
            return
        message = f"Content-Encoding {coding!r} is not supported. Send the body as it is."
        accepted = {"Accept-Encoding": PLAIN}
        await send_error(ApiError(415, message, code="unsupported_encoding", headers=accepted), scope, send)

    return answer


def _coding(scope: Scope) -> str | None:
    """Of the body, if there is one and it has one."""
    headers = scope.get("headers", ())
    if not any(name == b"transfer-encoding" or (name == b"content-length" and int(value)) for name, value in headers):
        return None
    given = b",".join(value for name, value in headers if name == b"content-encoding").decode("latin-1")
    return next((each for part in given.split(",") if (each := part.strip().lower()) in CODINGS), None)


def make_routes(front_door: FrontDoor, access: Access) -> Litestar:
    """What the front door answers itself."""

    def provide() -> FrontDoor:
        return front_door

    asked_with_key = Router(
        "/",
        route_handlers=[
            chat_completions,
            completions,
            embeddings,
            list_models,
            show_model,
            state,
            events,
            create_response,
            show_response,
            delete_response,
            list_input_items,
            tokenize,
            detokenize,
            *ANTHROPIC,
            *OLLAMA,
        ],
        guards=[guard(access.require_key)],
        opt={"access": "key"},
    )
    asked_by_console = Router(
        "/",
        route_handlers=[attempt, drain, hardware],
        guards=[guard(access.require_token)],
        opt={"access": "console"},
    )
    return Litestar(
        [index, health, metrics, openapi, docs, asked_with_key, asked_by_console],
        dependencies={"front_door": Provide(provide, use_cache=True, sync_to_thread=False)},
        exception_handlers={Exception: error_response},
        request_max_body_size=MAX_BODY_BYTES,
        openapi_config=None,
        logging_config=None,
    )


def counted(app: ASGIApp, front_door: FrontDoor) -> ASGIApp:
    """What the APIs refuse is counted."""

    async def answer(scope: Scope, receive: Receive, send: Send) -> None:
        if not is_of_api(scope):
            await app(scope, receive, send)
            return

        async def send_counted(message: Message) -> None:
            if message["type"] == "http.response.start" and message["status"] >= 400:
                front_door.metrics.failures.labels(message["status"]).inc()
            await send(message)

        await app(scope, receive, send_counted)

    return answer
