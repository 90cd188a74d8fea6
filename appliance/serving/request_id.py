"""Every request has an id: the client's, or else one of ours."""

from __future__ import annotations

import re
import secrets
from typing import Any, Final

from litestar.types import Scope

VALID: Final = re.compile(rb"[\x21-\x7e]{1,128}")
_STATE: Final = "request_id"


def name_request(scope: Scope) -> bytes:
    """Choose the id and remember it."""
    given = next((value for name, value in scope["headers"] if name == b"x-request-id"), b"")
    chosen = given if VALID.fullmatch(given) else secrets.token_hex(16).encode()
    state: dict[str, Any] = scope.setdefault("state", {})
    state[_STATE] = chosen.decode()
    return chosen


def request_id(scope: Scope) -> str:
    return str(scope.get("state", {}).get(_STATE, ""))
