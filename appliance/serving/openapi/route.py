"""`GET /openapi.json`."""

from __future__ import annotations

from typing import Any

from litestar import Request, get


@get("/openapi.json", summary="This document", answer="application/json")
async def openapi(request: Request[Any, Any, Any]) -> dict[str, Any]:
    """Made at each request: nobody needs it often."""
    from appliance.serving.openapi.document import openapi_document  # late: the first answer does not wait for it

    return openapi_document(request.app.routes)
