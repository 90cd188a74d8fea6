"""`GET /openapi.json`, and `GET /docs`, which shows it as a page."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any, Final

import msgspec
from litestar import Request, Response, get
from litestar.datastructures import State
from litestar.routes import BaseRoute

from appliance.serving.errors import ApiError
from appliance.serving.parts import TheFrontDoor

HTML: Final = "text/html"
# The page has its style in itself and needs nothing else.
PAGE_HEADERS: Final = {
    "Content-Security-Policy": "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'; "
    "frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
}


@get("/openapi.json", summary="This document", answer="application/json", errors=(404,))
async def openapi(request: Request[Any, Any, Any], front_door: TheFrontDoor) -> Response[bytes]:
    """What the native engine answers."""
    document, _ = await _built(request, front_door)
    return Response(document, media_type="application/json")


@get("/docs", summary="This document as a page", answer=HTML, errors=(404,))
async def docs(request: Request[Any, Any, Any], front_door: TheFrontDoor) -> Response[bytes]:
    _, page = await _built(request, front_door)
    return Response(page, media_type=HTML, headers=PAGE_HEADERS)


async def _built(request: Request[Any, Any, Any], front_door: TheFrontDoor) -> tuple[bytes, bytes]:
    """The document and its page. Built at the first request, as it takes a while and stays the same."""
    if front_door.on_vllm:
        raise ApiError(404, "vLLM answers requests itself, and there is no document of its API here.", code="not_found")
    state: State = request.app.state
    if "openapi" not in state:
        state["openapi"] = await asyncio.to_thread(_build, request.app.routes)
    built: tuple[bytes, bytes] = state["openapi"]
    return built


def _build(routes: Sequence[BaseRoute]) -> tuple[bytes, bytes]:
    from appliance.serving.openapi.document import openapi_document  # late: the first answer does not wait for them
    from appliance.serving.openapi.page import documentation_page

    document = openapi_document(routes)
    return msgspec.json.encode(document), documentation_page(document).encode()
