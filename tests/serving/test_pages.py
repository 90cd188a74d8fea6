"""Web pages of other sites: which of them browsers let use the API, and what they can read (CORS)."""

from __future__ import annotations

import gzip
import hashlib
import json
import subprocess
from collections.abc import Iterator

import httpx
import pytest

from appliance.home import Home
from appliance.serving.pages import ALLOWED_ORIGINS, AllowedOrigins
from tests.running import INGOT, environment
from tests.supervisor.scripted import Door

PAGE = "https://app.example"
FOREIGN = "https://evil.example"
KEY = {"Authorization": "Bearer secret-1"}
APIS = ["/v1/chat/completions", "/v1/models", "/api/chat", "/tokenize"]
ALLOWED = "access-control-allow-origin"


def require_key(home: Home) -> None:
    row = {"id": "k1", "name": "first", "sha256": hashlib.sha256(b"secret-1").hexdigest()}
    home.api_keys.write_text(json.dumps({"required": True, "keys": [row]}))


@pytest.fixture(scope="module")
def doors(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Door]]:
    """By INGOT_ALLOWED_ORIGINS."""
    homes = {allowed: Home.at(tmp_path_factory.mktemp("pages") / "home").create() for allowed in (PAGE, "*", "")}
    for home in homes.values():
        require_key(home)
    with (
        Door(homes[PAGE], allowed_origins=f"{PAGE}, http://10.0.0.5:3000") as named,
        Door(homes["*"], allowed_origins="*") as every,
        Door(homes[""]) as none,
    ):
        doors = {PAGE: named, "*": every, "": none}
        for door in doors.values():
            door.http.headers.update(KEY)
            door.wait("ready")
            del door.http.headers["authorization"]
        yield doors


def preflight(door: Door, path: str, origin: str) -> httpx.Response:
    wanted = "authorization,content-type,x-stainless-os,anthropic-dangerous-direct-browser-access"
    asked = {"Origin": origin, "Access-Control-Request-Method": "POST", "Access-Control-Request-Headers": wanted}
    told = door.http.options(path, headers={**asked, "Access-Control-Request-Private-Network": "true"})
    if ALLOWED in told.headers:
        assert told.headers["access-control-allow-headers"] == wanted
    return told


@pytest.mark.parametrize("path", APIS)
@pytest.mark.parametrize(("allowed", "shown"), [(PAGE, PAGE), ("*", "*")])
def test_a_browser_may_ask_for_an_allowed_page_whether_it_may_show_a_key(
    doors: dict[str, Door], allowed: str, shown: str, path: str
) -> None:
    """Before it has shown it, and with the headers that official clients add."""
    told = preflight(doors[allowed], path, PAGE)
    assert told.status_code == 204
    assert told.headers[ALLOWED] == shown
    assert "POST" in told.headers["access-control-allow-methods"]
    assert told.headers["access-control-allow-private-network"] == "true"
    assert "access-control-allow-credentials" not in told.headers


@pytest.mark.parametrize("path", APIS)
@pytest.mark.parametrize(
    ("allowed", "origin"),
    [("", PAGE), ("", FOREIGN), (PAGE, FOREIGN), (PAGE, f"{PAGE}:8443"), (PAGE, "http://app.example"), (PAGE, "null")],
)
def test_no_other_page_may_ask_or_read_even_with_a_key(
    doors: dict[str, Door], allowed: str, origin: str, path: str
) -> None:
    """As where a proxy adds the key: what the page is answered says nothing that opens it to the page."""
    asked = preflight(doors[allowed], path, origin)
    answers = [
        doors[allowed].http.request(method, path, headers={"Origin": origin, **KEY}) for method in ("GET", "POST")
    ]
    for answer in (asked, *answers):
        assert not [name for name in answer.headers if name.startswith("access-control-")]


@pytest.mark.parametrize(("key", "status"), [("secret-1", 200), ("wrong", 401), (None, 401)])
def test_a_page_can_read_its_answer_streamed_or_not_and_why_there_is_none(
    doors: dict[str, Door], key: str | None, status: int
) -> None:
    headers = {"Origin": PAGE, **({"Authorization": f"Bearer {key}"} if key else {})}
    for allowed, shown in ((PAGE, PAGE), ("*", "*")):
        for stream in (False, True):
            body = {"prompt": "x", "max_tokens": 1, "stream": stream}
            answer = doors[allowed].http.post("/v1/completions", json=body, headers=headers)
            assert answer.status_code == status
            assert answer.headers[ALLOWED] == shown


def test_a_page_can_read_that_its_body_must_not_be_compressed(doors: dict[str, Door]) -> None:
    headers = {"Origin": PAGE, "Content-Encoding": "gzip", **KEY}
    refused = doors[PAGE].http.post("/v1/completions", content=gzip.compress(b"{}"), headers=headers)
    assert (refused.status_code, refused.headers[ALLOWED]) == (415, PAGE)


def test_what_is_answered_to_one_page_is_kept_for_no_other(doors: dict[str, Door]) -> None:
    """Caches tell answers by the origin that asked."""
    for origin in ({"Origin": PAGE}, {"Origin": FOREIGN}, {}):
        answer = doors[PAGE].http.get("/v1/models", headers={**KEY, **origin})
        assert "origin" in answer.headers["vary"].lower().split(", ")


def test_what_belongs_to_no_api_is_for_no_page(doors: dict[str, Door]) -> None:
    """Metrics are anybody's on this machine, and no other site's."""
    for path in ("/metrics", "/health", "/openapi.json"):
        assert ALLOWED not in doors["*"].http.get(path, headers={"Origin": PAGE}).headers
    assert ALLOWED not in doors["*"].http.get("/v1/models", headers=KEY).headers


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("", set()),
        (" , ", set()),
        (PAGE, {PAGE}),
        ("https://App.Example:443,http://app.example:80", {PAGE, "http://app.example"}),
        ("http://app.example:443 , http://[::1]:3000", {"http://app.example:443", "http://[::1]:3000"}),
        ("app://obsidian.md", {"app://obsidian.md"}),
    ],
)
def test_origins_are_taken_as_browsers_write_them(text: str, named: set[str]) -> None:
    assert AllowedOrigins.of({ALLOWED_ORIGINS: text}) == AllowedOrigins(frozenset(named))


@pytest.mark.parametrize(
    "text",
    ["app.example", f"{PAGE}/", f"{PAGE}/chat", "https://", "https://*.example", "null", "https://a:99999",
     "https://a b", f"{PAGE},*", f"{PAGE};{FOREIGN}"],
)  # fmt: skip
def test_what_is_no_origin_is_refused_by_name(text: str) -> None:
    with pytest.raises(ValueError, match=ALLOWED_ORIGINS):
        AllowedOrigins.of({ALLOWED_ORIGINS: text})


def test_the_engine_does_not_start_with_what_is_no_origin(home: Home) -> None:
    """Before it takes the state folder or the port."""
    given = {**environment(home.root), ALLOWED_ORIGINS: "app.example"}
    done = subprocess.run([*INGOT, "serve", "--port", "0"], env=given, capture_output=True, text=True, timeout=20)
    assert done.returncode == 2
    assert ALLOWED_ORIGINS in done.stderr
    assert "app.example" in done.stderr
    assert not home.lock.exists()
