"""Errors in OpenAI's shape, and the one place where any other exception becomes one."""

from __future__ import annotations

import http
import math
import sys
import time
import traceback
from typing import Any

from litestar.exceptions import HTTPException

from appliance.protocol import State

MAX_BODY_BYTES = 8 << 20
# While a launch is in progress, retrying soon makes sense; after its end only a person can help.
RETRY_AFTER_S: dict[State, int] = {State.PREFLIGHT: 1, State.STARTING: 1, State.IDLE: 1, State.DRAINING: 5}
# A drain may end before its deadline, and OpenAI's clients ignore a longer wait.
LONGEST_RETRY_AFTER_S = 60
NOT_READY: dict[State, str] = {
    State.IDLE: "No model is running",
    State.PREFLIGHT: "The engine is starting",
    State.STARTING: "The engine is starting",
    State.READY: "The engine is not ready",
    State.DRAINING: "The engine is finishing its last requests and takes no new ones",
    State.STOPPED: "The engine is stopped",
    State.FAILED: "The engine failed",
    State.HUNG: "The engine hung",
}
TYPES: dict[int, str] = {401: "authentication_error", 403: "permission_error", 429: "rate_limit_error"}


class ApiError(Exception):
    """`param` names the field of the request, `code` is for programs; both as in OpenAI's API."""

    def __init__(
        self,
        status: int,
        message: str,
        *,
        param: str | None = None,
        code: str | None = None,
        headers: dict[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.message = _encodable(message)
        self.param = _encodable(param) if param is not None else None
        self.code = code
        self.headers = headers or {}

    @property
    def content(self) -> dict[str, Any]:
        kind = TYPES.get(self.status, "server_error" if self.status >= 500 else "invalid_request_error")
        return {"error": {"message": self.message, "type": kind, "param": self.param, "code": self.code}}


def _encodable(text: str) -> str:
    """What is quoted of a request may hold halves of characters, which JSON can name and UTF-8 cannot."""
    return text.encode(errors="replace").decode()


class ClientGoneError(ApiError):
    """The client is gone; the status is for the metrics only."""

    def __init__(self) -> None:
        super().__init__(499, "The client disconnected.")


class PromptTooLongError(ApiError):
    """The context does not hold the prompt, which has at least `num_tokens`."""

    def __init__(self, message: str, param: str, num_tokens: int) -> None:
        super().__init__(400, message, param=param, code="context_length_exceeded")
        self.num_tokens = num_tokens


def bad_request(message: str, param: str | None = None, code: str = "invalid_value") -> ApiError:
    return ApiError(400, message, param=param, code=code)


def missing(param: str) -> ApiError:
    return bad_request(f"{param} is missing.", param, "missing_field")


def not_ready(state: State, reason: str, drain_until: float | None = None) -> ApiError:
    """`drain_until` is the deadline of a drain under way."""
    wait_s = RETRY_AFTER_S.get(state)
    if drain_until is not None:
        wait_s = min(max(1, math.ceil(drain_until - time.time())), LONGEST_RETRY_AFTER_S)
    headers = {} if wait_s is None else {"Retry-After": str(wait_s)}
    because = f": {reason}" if reason else "."
    return ApiError(503, f"{NOT_READY[state]}{because}", code="engine_not_ready", headers=headers)


def not_with_model(path: str) -> ApiError:
    return ApiError(404, f"{path} is not available with this model.", code="not_with_this_model")


def engine_gone(reason: str) -> ApiError:
    return ApiError(502, f"The engine stopped while answering: {reason}", code="engine_failed")


def api_error(error: Exception) -> ApiError:
    """What a client is told of an exception that leaves a route."""
    if isinstance(error, ApiError):
        return error
    return _from_framework(error) if isinstance(error, HTTPException) else _unexpected(error)


def _from_framework(error: HTTPException) -> ApiError:
    status = error.status_code
    if status == 413:
        return too_large()
    if status == 404:
        return ApiError(404, "Unknown path.", code="not_found")
    if status == 405:
        message = "This path does not support this method."
        return ApiError(405, message, code="method_not_allowed", headers=error.headers)
    if status < 500:
        return ApiError(status, error.detail or http.HTTPStatus(status).phrase)
    return _unexpected(error)


def too_large(most: int = MAX_BODY_BYTES) -> ApiError:
    limit = most // (1 << 20)
    return ApiError(413, f"The request body is larger than {limit} MiB.", code="request_too_large")


def _unexpected(error: Exception) -> ApiError:
    # A bug: the traceback goes to the front door's log, without any prompt.
    traceback.print_exception(error, file=sys.stderr)
    return ApiError(500, "The front door failed on this request. Its log has the details.", code="internal_error")
