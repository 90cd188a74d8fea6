"""A malformed Host header is refused in words, on every route."""

from __future__ import annotations

import pytest

from tests.supervisor.scripted import Door

MALFORMED = ["[", "[::1", "127.0.0.1:abc", "a]b", "x:99999", "bad host/x", "x?", "a@b"]


@pytest.mark.parametrize("host", MALFORMED)
@pytest.mark.parametrize("path", ["/health", "/v1/models", "/nowhere"])
def test_a_malformed_host_is_refused(door: Door, path: str, host: str) -> None:
    response = door.http.get(path, headers={"Host": host})
    assert response.status_code == 400
    assert response.json()["error"]["code"] == "invalid_host"
    assert response.headers["x-request-id"]


@pytest.mark.parametrize("host", ["", "x", "x:8000", "[::1]:8000", "127.0.0.1"])
def test_any_address_will_do(door: Door, host: str) -> None:
    """Which name a client uses is its own business, and a probe may use none."""
    assert door.http.get("/v1/models", headers={"Host": host}).status_code == 200
