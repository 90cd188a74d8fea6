"""Who is let in: keys and the console's token as they change, and no web page of another site."""

from __future__ import annotations

import hashlib
import inspect
import json
from collections.abc import Iterator
from typing import Any, cast

import pytest
from litestar.connection import ASGIConnection

from appliance.address import is_loopback
from appliance.front_door_token import digest
from appliance.home import Home
from appliance.serving.access import Access
from appliance.serving.app import make_routes
from appliance.serving.errors import ApiError
from appliance.serving.front_door import FrontDoor
from tests.supervisor.scripted import Door

KEYED = ["/v1/models", "/appliance/state"]


@pytest.fixture
def keys(door_home: Home) -> Iterator[None]:
    rows = [{"id": "k1", "name": "first", "sha256": hashlib.sha256(b"secret-1").hexdigest()}]
    door_home.api_keys.write_text(json.dumps({"required": True, "keys": rows}))
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


def test_a_revoked_key_is_refused_where_none_is_required(door: Door, door_home: Home) -> None:
    """Its owner was promised that it never works again. Made-up keys, which some clients insist on, still count as
    none."""
    revoked = [hashlib.sha256(b"secret-1").hexdigest()]
    door_home.api_keys.write_text(json.dumps({"required": False, "keys": [], "revoked": revoked}))
    try:
        answer = door.http.get("/v1/models", headers=bearer("secret-1"))
        assert (answer.status_code, answer.json()["error"]["code"]) == (401, "invalid_api_key")
        for headers in ({}, bearer("dummy")):
            assert door.http.get("/v1/models", headers=headers).status_code == 200
    finally:
        door_home.api_keys.unlink()
    assert door.http.get("/v1/models", headers=bearer("secret-1")).status_code == 200


def test_a_removed_key_is_refused_at_once(door: Door, keys: None, door_home: Home) -> None:
    """The file is read again when it changes."""
    assert door.http.get("/v1/models", headers=bearer("secret-1")).status_code == 200
    row = {"id": "k2", "name": "second", "sha256": hashlib.sha256(b"secret-2").hexdigest()}
    door_home.api_keys.write_text(json.dumps({"keys": [row]}))
    assert door.http.get("/v1/models", headers=bearer("secret-1")).status_code == 401
    assert door.http.get("/v1/models", headers=bearer("secret-2")).status_code == 200


ROW = {"id": "k1", "name": "first", "sha256": hashlib.sha256(b"secret-1").hexdigest()}


@pytest.mark.parametrize(
    ("content", "code"),
    [
        ('{"keys": [', "keys_unreadable"),
        ("", "keys_unreadable"),
        ('{"required": "no", "keys": []}', "keys_unreadable"),
        ("[]", "keys_unreadable"),
        ('{"required": true, "keys": []}', "no_api_keys"),
    ],
)
def test_a_file_that_lets_nobody_in(door: Door, keys: None, door_home: Home, content: str, code: str) -> None:
    """Damaged, or keys are required and there are none: refused rather than open; the console goes on."""
    door_home.api_keys.write_text(content)
    for headers in ({}, bearer("secret-1")):
        response = door.http.get("/v1/models", headers=headers)
        assert response.status_code == 401
        assert response.json()["error"]["code"] == code
    assert door.http.get("/v1/models", headers=bearer("console-secret")).status_code == 200


def test_a_file_that_may_not_be_read_lets_nobody_in(door: Door, keys: None, door_home: Home) -> None:
    """Whatever stands in its place."""
    door_home.api_keys.unlink()
    door_home.api_keys.mkdir()
    assert door.http.get("/v1/models").json()["error"]["code"] == "keys_unreadable"
    door_home.api_keys.rmdir()
    door_home.api_keys.write_text("{}")


def test_a_token_that_may_not_be_read_leaves_keys_alone(door: Door, keys: None, door_home: Home) -> None:
    door_home.front_door_digest.unlink()
    door_home.front_door_digest.mkdir()
    answers = [
        door.http.get("/v1/models", headers=bearer("secret-1")),
        door.http.get("/v1/models", headers=bearer("console-secret")),
        door.http.post("/appliance/drain", json={"within_s": 60}, headers=bearer("console-secret")),
    ]
    door_home.front_door_digest.rmdir()
    door_home.front_door_digest.touch()
    assert [answer.status_code for answer in answers] == [200, 401, 401]
    assert [answer.json()["error"]["code"] for answer in answers[1:]] == ["invalid_api_key", "token_unreadable"]


def test_keys_count_but_are_not_required_while_the_switch_is_off(door: Door, keys: None, door_home: Home) -> None:
    """A client with any key, or none, is let in, and a web page of another site only with a valid one."""
    door_home.api_keys.write_text(json.dumps({"required": False, "keys": [ROW]}))
    for headers in ({}, bearer("wrong"), bearer("secret-1")):
        assert door.http.get("/v1/models", headers=headers).status_code == 200
    foreign = {"Origin": "https://app.example"}
    assert door.http.get("/v1/models", headers={**foreign, **bearer("wrong")}).status_code == 403
    assert door.http.get("/v1/models", headers={**foreign, **bearer("secret-1")}).status_code == 200


def _answer(access: Access, **headers: str) -> str:
    """How the guard decides about a request without web framework: `let in`, or the code of its refusal."""
    raw = [(name.encode(), value.encode()) for name, value in {"host": "10.0.0.9:8000", **headers}.items()]
    scope = cast(Any, {"type": "http", "headers": raw, "method": "GET", "path": "/v1/models", "query_string": b""})
    try:
        access.require_key(ASGIConnection(scope))
    except ApiError as error:
        return f"{error.status} {error.code}"
    return "let in"


def test_no_guard_or_route_is_run_in_a_thread(home: Home) -> None:
    """A change of threads costs every request more than all that a guard does."""
    app = make_routes(FrontDoor(home), Access(home, "127.0.0.1"))
    handlers = [handler for route in app.routes for handler in getattr(route, "route_handlers", [])]
    guards = [guard for handler in handlers for guard in handler.resolve_guards()]
    assert len(guards) > 10
    assert all(map(inspect.iscoroutinefunction, guards))
    assert not [handler for handler in handlers if handler.sync_to_thread]


LOCAL = "let in"
REFUSED = "401 invalid_api_key"


@pytest.mark.parametrize(
    ("host", "environ", "headers", "expected"),
    [
        ("127.0.0.1", {}, {}, LOCAL),
        ("::1", {}, {}, LOCAL),
        ("0.0.0.0", {}, {}, REFUSED),
        ("192.0.2.7", {}, {}, REFUSED),
        ("::", {}, {}, REFUSED),
        ("0.0.0.0", {"INGOT_PUBLISHED_ADDRESS": "127.0.0.1"}, {}, LOCAL),
        ("0.0.0.0", {"INGOT_PUBLISHED_ADDRESS": ""}, {}, REFUSED),
        ("127.0.0.1", {"INGOT_PUBLISHED_ADDRESS": "0.0.0.0"}, {}, REFUSED),
        ("0.0.0.0", {"INGOT_PUBLISHED_ADDRESS": "127.0.0.1,127.0.0.1"}, {}, LOCAL),
        ("0.0.0.0", {"INGOT_PUBLISHED_ADDRESS": "127.0.0.1, [::1]"}, {}, LOCAL),
        ("0.0.0.0", {"INGOT_PUBLISHED_ADDRESS": "0.0.0.0,127.0.0.1"}, {}, REFUSED),
        ("0.0.0.0", {"INGOT_PUBLISHED_ADDRESS": "127.0.0.1,0.0.0.0"}, {}, REFUSED),
        ("0.0.0.0", {"INGOT_PUBLISHED_ADDRESS": "127.0.0.1,"}, {}, REFUSED),
        ("127.0.0.1", {}, {"x-forwarded-for": "127.0.0.1"}, REFUSED),
        ("127.0.0.1", {}, {"forwarded": "for=10.0.0.7"}, REFUSED),
        ("0.0.0.0", {"INGOT_KEYLESS": "1"}, {}, LOCAL),
        ("0.0.0.0", {"INGOT_KEYLESS": "1"}, {"x-forwarded-for": "10.0.0.7"}, LOCAL),
        ("0.0.0.0", {"INGOT_KEYLESS": "no"}, {}, REFUSED),
    ],
)
@pytest.mark.parametrize("content", [None, '{"required": false, "keys": []}', '{"keys": []}'])
def test_beyond_loopback_a_key_is_required_unless_the_site_opts_out(
    home: Home, host: str, environ: dict[str, str], headers: dict[str, str], expected: str, content: str | None
) -> None:
    """Whatever the switch says: what decides is where the API can be reached, and whether a proxy passed it on."""
    if content is not None:
        home.api_keys.write_text(content)
    assert _answer(Access(home, host, environ), **headers) == expected


@pytest.mark.parametrize("environ", [{}, {"INGOT_KEYLESS": "1"}])
def test_a_valid_key_is_enough_anywhere(home: Home, environ: dict[str, str]) -> None:
    """And the opt-out lifts what the address asks for, not the switch."""
    home.api_keys.write_text(json.dumps({"required": True, "keys": [ROW]}))
    access = Access(home, "0.0.0.0", environ)
    assert _answer(access, authorization="Bearer secret-1") == LOCAL
    assert _answer(access, authorization="Bearer wrong") == REFUSED
    assert _answer(access) == REFUSED


def test_loopback_is_an_address_of_this_machine_only() -> None:
    """By number and by name."""
    hosts = ["127.0.0.1", "127.8.8.8", "::1", "[::1]", "localhost", "0.0.0.0", "::", "10.0.0.1", "", "localhost.evil"]
    assert [host for host in hosts if is_loopback(host)] == hosts[:5]


def test_attempts_take_the_consoles_token_only(door: Door, keys: None) -> None:
    """An API key may generate, not manage; and where there is no token, nobody may."""
    for headers in ({}, bearer("secret-1"), bearer("wrong")):
        assert door.http.post("/appliance/attempts", json={}, headers=headers).status_code == 401
    assert door.http.post("/appliance/attempts", json={}, headers=bearer("console-secret")).status_code == 400


@pytest.mark.parametrize("launch", ["", "é", "a/b", "..", "-a", "a" * 101, "a\n"])
def test_a_launch_id_that_names_no_folder_is_refused(door: Door, keys: None, launch: str) -> None:
    body = {"launch": launch, "profile": {}}
    answer = door.http.post("/appliance/attempts", json=body, headers=bearer("console-secret"))
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "launch")


def test_attempts_without_any_token_file_are_refused(door: Door) -> None:
    """An empty bearer is not the missing token."""
    for headers in ({}, {"Authorization": "Bearer"}, bearer("x")):
        assert door.http.post("/appliance/attempts", json={}, headers=headers).status_code == 401


@pytest.mark.parametrize(
    "headers",
    [
        {"Origin": "https://evil.example"},
        {"Origin": "null"},
        {"Origin": "http://["},
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
