"""The front door's routes, and what applies to all: access, size limits, errors, headers."""

from __future__ import annotations

from typing import Any, Final

from litestar import Litestar, Router
from litestar.di import Provide
from litestar.enums import ScopeType
from litestar.types import ASGIApp, Message, Receive, Scope, Send

from appliance.serving.access import Access
from appliance.serving.anthropic.routes import ROUTES as ANTHROPIC
from appliance.serving.appliance_routes import attempt, drain, events, health, metrics, state
from appliance.serving.chat import chat_completions
from appliance.serving.completions import completions
from appliance.serving.error_shape import error_response
from appliance.serving.errors import MAX_BODY_BYTES
from appliance.serving.front_door import FrontDoor
from appliance.serving.hardware_route import hardware
from appliance.serving.head import with_head
from appliance.serving.models import list_models, show_model
from appliance.serving.ollama.routes import ROUTES as OLLAMA
from appliance.serving.proxy import POST, Proxy
from appliance.serving.request_id import name_request
from appliance.serving.tokenize import detokenize, tokenize

# What belongs to no API is not counted among its failures.
APIS: Final = ("/v1/", "/api/")


def make_app(front_door: FrontDoor, access: Access) -> ASGIApp:
    def provide() -> FrontDoor:
        return front_door

    asked_with_key = Router(
        "/",
        route_handlers=[
            chat_completions,
            completions,
            list_models,
            show_model,
            tokenize,
            detokenize,
            *ANTHROPIC,
            *OLLAMA,
            state,
            events,
        ],
        guards=[access.require_key],
    )
    asked_by_console = Router("/", route_handlers=[attempt, drain, hardware], guards=[access.require_token])
    app = Litestar(
        [health, metrics, asked_with_key, asked_by_console],
        dependencies={"front_door": Provide(provide, use_cache=True, sync_to_thread=False)},
        exception_handlers={Exception: error_response},
        request_max_body_size=MAX_BODY_BYTES,
        openapi_config=None,
        logging_config=None,
    )
    proxy = Proxy(front_door, access)

    async def passed_on_or_answered(scope: Scope, receive: Receive, send: Send) -> None:
        await (proxy if proxy.takes(scope) else app)(scope, receive, send)

    return with_head(named(passed_on_or_answered, front_door))


def named(app: ASGIApp, front_door: FrontDoor) -> ASGIApp:
    """Every response says who answered and to which request (one that has no id is given one), and what was refused
    is counted."""

    async def with_headers(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != ScopeType.HTTP:
            await app(scope, receive, send)
            return
        request_id = name_request(scope)
        of_api = scope["path"].startswith(APIS) or scope["path"] in POST

        async def send_named(message: Message) -> None:
            if message["type"] == "http.response.start":
                if message["status"] >= 400 and of_api:
                    front_door.metrics.failures.labels(message["status"]).inc()
                ids: list[Any] = [(b"x-request-id", request_id), (b"request-id", request_id)]  # ours and Anthropic's
                message["headers"] = [*message["headers"], (b"server", b"ingot"), *ids]
            await send(message)

        await app(scope, receive, send_named)

    return with_headers
