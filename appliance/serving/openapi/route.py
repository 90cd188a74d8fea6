"""`GET /openapi.json`."""

from __future__ import annotations

from typing import Any

import msgspec
from litestar import Request, Response, get


@get("/openapi.json", summary="This document", answer="application/json")
async def openapi(request: Request[Any, Any, Any]) -> Response[bytes]:
    """Built at the first request, as it takes a while and stays the same."""
    from appliance.serving.openapi.document import openapi_document  # late: the first answer does not wait for it

    state = request.app.state
    if "openapi" not in state:
        state["openapi"] = msgspec.json.encode(openapi_document(request.app.routes))
    return Response(state["openapi"], media_type="application/json")
