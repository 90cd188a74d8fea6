"""Errors in Anthropic's shape. `param` and `code` are ours beside it."""

from __future__ import annotations

from typing import Any, Final

from appliance.serving.errors import ApiError
from appliance.serving.stream import named_frame

TYPES: Final = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
}


def error_content(error: ApiError, request_id: str) -> dict[str, Any]:
    kind = TYPES.get(error.status, "api_error" if error.status >= 500 else "invalid_request_error")
    described = {"type": kind, "message": error.message, "param": error.param, "code": error.code}
    return {"type": "error", "error": described, "request_id": request_id}


def error_event(error: ApiError, request_id: str) -> bytes:
    """The end of a stream."""
    return named_frame("error", error_content(error, request_id), id=None)
