"""Programs on this machine, such as `ingot profile activate`: anyone who can read the console token owns the state
folder, and may use it as a bearer token."""

from __future__ import annotations

import secrets
from typing import Any

from litestar import Request

from appliance.home import Home
from console import authors
from console.access.sessions import SignedIn

PROGRAM = SignedIn(id=0, name=authors.COMMAND_LINE, session_id=0)


def signed_in(home: Home, request: Request[Any, Any, Any]) -> SignedIn | None:
    kind, _, given = request.headers.get("authorization", "").partition(" ")
    if kind.lower() != "bearer" or not given:
        return None
    try:
        token = home.console_token.read_text(encoding="ascii").strip()
    except (FileNotFoundError, UnicodeDecodeError):
        return None
    return PROGRAM if token and secrets.compare_digest(given.strip().encode(), token.encode()) else None
