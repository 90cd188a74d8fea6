"""The Host header, judged alike before the routes are there and after. Imports no web framework."""

from __future__ import annotations

from typing import Any

from appliance.address import host_name


def malformed_host(scope: Any) -> str | None:
    """The header, where it is no address. Old clients send none, which does no harm."""
    if scope["type"] != "http":
        return None
    host = next((value for name, value in scope["headers"] if name == b"host"), b"").decode("latin-1")
    return host if host and not host_name(host) else None
