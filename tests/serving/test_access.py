"""Who is let in: keys and the console's token as they change, and no web page of another site."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator

import pytest

from appliance.front_door_token import digest
from appliance.home import Home
from tests.supervisor.scripted import Door

KEYED = ["/v1/models", "/appliance/state"]


@pytest.fixture
def keys(door_home: Home) -> Iterator[None]:
    rows = [{"id": "k1", "name": "first", "sha256": hashlib.sha256(b"secret-1").hexdigest()}]
    door_home.api_keys.write_text(json.dumps({"keys": rows}))
    door_home.front_door_digest.write_text(f"{digest('console-secret')}\n")
    yield
    door_home.api_keys.unlink()
    door_home.front_door_digest.unlink()


def bearer(key: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {key}"}


@pytest.mark.parametrize("path", KEYED)
def test_without_keys_the_api_is_open(door: Door, path: str) -> None:
    """A first start asks nobody for a key."""
    assert door.http.get(path).status_code == 200
    assert door.http.get(path, headers=bearer("anything")).status_code == 200


@pytest.mark.parametrize("path", KEYED)
def test_with_keys_a_key_or_the_consoles_token_is_needed(door: Door, keys: None, path: str) -> None:
    """From the next request on, without a restart; and health and metrics stay open."""
    for headers in ({}, bearer("wrong"), {"Authorization": "Bearer"}, {"Authorization": "Basic c2VjcmV0LTE="}):
        response = door.http.get(path, headers=headers)
        assert response.status_code == 401
        assert response.json()["error"]["code"] == "invalid_api_key"
        assert response.headers["www-authenticate"] == "Bearer"
    assert door.http.get(path, headers=bearer("secret-1")).status_code == 200
    assert door.http.get(path, headers=bearer("console-secret")).status_code == 200
    assert door.http.get("/health").status_code == 200
    assert door.http.get("/metrics").status_code == 200


def test_a_removed_key_is_refused_at_once(door: Door, keys: None, door_home: Home) -> None:
    """The file is read again when it changes."""
    assert door.http.get("/v1/models", headers=bearer("secret-1")).status_code == 200
    row = {"id": "k2", "name": "second", "sha256": hashlib.sha256(b"secret-2").hexdigest()}
    door_home.api_keys.write_text(json.dumps({"keys": [row]}))
    assert door.http.get("/v1/models", headers=bearer("secret-1")).status_code == 401
    assert door.http.get("/v1/models", headers=bearer("secret-2")).status_code == 200


def test_a_damaged_key_file_lets_only_the_console_in(door: Door, keys: None, door_home: Home) -> None:
    """Closed rather than open, and it says what to do."""
    door_home.api_keys.write_text('{"keys": [')
    response = door.http.get("/v1/models", headers=bearer("secret-1"))
    assert response.status_code == 500
    assert "active/keys.json" in response.json()["error"]["message"]


def test_attempts_take_the_consoles_token_only(door: Door, keys: None) -> None:
    """An API key may generate, not manage; and where there is no token, nobody may."""
    for headers in ({}, bearer("secret-1"), bearer("wrong")):
        assert door.http.post("/appliance/attempts", json={}, headers=headers).status_code == 401
    assert door.http.post("/appliance/attempts", json={}, headers=bearer("console-secret")).status_code == 400


def test_attempts_without_any_token_file_are_refused(door: Door) -> None:
    """An empty bearer is not the missing token."""
    for headers in ({}, {"Authorization": "Bearer"}, bearer("x")):
        assert door.http.post("/appliance/attempts", json={}, headers=headers).status_code == 401


@pytest.mark.parametrize(
    "headers",
    [
        {"Origin": "https://evil.example"},
        {"Origin": "null"},
        {"Sec-Fetch-Site": "cross-site"},
        {"Origin": "http://localhost:3000"},
        {"Host": "evil.example:8000", "Sec-Fetch-Site": "same-origin"},
        {"Host": "evil.example:8000", "Origin": "http://evil.example:8000"},
    ],
)
def test_a_web_page_of_another_site_is_refused_without_a_key(door: Door, headers: dict[str, str]) -> None:
    """Not even when its own name was made to point here; a program is no web page."""
    body = {"prompt": "x", "max_tokens": 1}
    response = door.http.post("/v1/completions", json=body, headers=headers)
    assert response.status_code == 403
    assert response.json()["error"]["code"] == "foreign_origin"
    assert door.http.get("/appliance/state", headers=headers).status_code == 403
    assert door.http.post("/v1/completions", json=body).status_code == 200
    assert door.http.post("/v1/completions", json=body, headers={"Origin": door.url}).status_code == 200


def test_a_web_page_that_shows_a_key_is_let_in(door: Door, keys: None) -> None:
    """A key is proof enough."""
    headers = {**bearer("secret-1"), "Origin": "https://app.example"}
    assert door.http.get("/v1/models", headers=headers).status_code == 200
