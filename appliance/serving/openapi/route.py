"""`GET /openapi.json`."""

from __future__ import annotations

from typing import Any

import msgspec
from litestar import Request, Response, get

from appliance.serving.errors import ApiError
from appliance.serving.front_door import FrontDoor


@get("/openapi.json", summary="This document", answer="application/json", errors=(404,))
async def openapi(request: Request[Any, Any, Any], front_door: FrontDoor) -> Response[bytes]:
    """What the native engine answers. Built at the first request, as it takes a while and stays the same."""
    if front_door.on_vllm:
        raise ApiError(404, "vLLM answers requests itself, and there is no document of its API here.", code="not_found")
    from appliance.serving.openapi.document import openapi_document  # late: the first answer does not wait for it

    state = request.app.state
    if "openapi" not in state:
        state["openapi"] = msgspec.json.encode(openapi_document(request.app.routes))
    return Response(state["openapi"], media_type="application/json")
