"""What every request passes first."""

from __future__ import annotations

import dataclasses

import pytest
from litestar.testing import AsyncTestClient

from console.access.guard import SECURITY_HEADERS
from console.app import create_app
from tests.console.conftest import BASE_URL


@pytest.mark.parametrize(
    ("headers", "refused"),
    [
        ({"Sec-Fetch-Site": "same-origin"}, False),
        ({"Sec-Fetch-Site": "none"}, False),
        ({"Sec-Fetch-Site": "cross-site"}, True),
        ({"Sec-Fetch-Site": "same-site"}, True),
        ({"Sec-Fetch-Site": "", "Origin": "http://console.local:8080"}, True),
        ({"Sec-Fetch-Site": None, "Origin": "http://console.local:8080"}, False),
        ({"Sec-Fetch-Site": None, "Origin": "http://evil.example"}, True),
        ({"Sec-Fetch-Site": None, "Origin": "null"}, True),
        ({"Sec-Fetch-Site": None, "Origin": "http://["}, True),
        ({"Sec-Fetch-Site": None}, False),
    ],
)
async def test_changes_that_other_sites_ask_for_are_refused(client, control, headers, refused):
    """A form on another site cannot stop the engine, though the browser has a session here; the refusal says why."""
    if headers.get("Sec-Fetch-Site", "") is None:
        del client.headers["Sec-Fetch-Site"]
    sent = {name: value for name, value in headers.items() if value is not None}
    answer = await client.post("/engine/stop", headers=sent, follow_redirects=False)
    if refused:
        assert answer.status_code == 403
        assert control.calls == []
    else:
        assert answer.status_code == 303
        assert control.calls == ["stop"]


@pytest.mark.parametrize("host", ["evil.example", "evil.example:8080", "localhost.evil.example"])
async def test_foreign_names_are_refused(client, host):
    """A page whose name was pointed at this address (DNS rebinding) gets nothing."""
    answer = await client.get("/", headers={"Host": host})
    assert answer.status_code == 403


@pytest.mark.parametrize(
    "host", ["127.0.0.1:abc", "127.0.0.1:99999999", "127.0.0.1:-1", "[::1", "[", "a]b", ":8080", ""]
)
@pytest.mark.parametrize("path", ["/", "/nowhere", "/static/frame.css"])
async def test_a_malformed_host_header_is_refused(client, host, path):
    """With and without a session, on a page and for programs, and not as a fault."""
    for _ in range(2):
        for accept in ("text/html", "application/json"):
            answer = await client.get(path, headers={"Host": host, "Accept": accept}, follow_redirects=False)
            assert answer.status_code == 400
        assert answer.json()["field"] == "Host"
        client.cookies.clear()


@pytest.mark.parametrize("host", ["localhost:8080", "127.0.0.1:8080", "[::1]:8080", "192.0.2.7:8080", "console.local"])
async def test_our_names_and_bare_addresses_are_let_in(client, host):
    """Loopback names, configured names, and addresses, which cannot be rebound."""
    assert (await client.get("/", headers={"Host": host})).status_code == 200


@pytest.mark.parametrize("path", ["/", "/nowhere", "/sign-in", "/static/frame.css", "/live"])
async def test_every_answer_has_the_security_headers(client, path):
    """The policy allows no inline script or style, and stands on errors and static files too."""
    if path == "/live":
        path = "/live?topic=" + "&topic=".join("x" * 20)
    answer = await client.get(path)
    for name, value in SECURITY_HEADERS.items():
        assert answer.headers[name] == value
    assert "unsafe" not in answer.headers["Content-Security-Policy"]


@pytest.mark.parametrize("secure", [True, False])
async def test_https_is_asked_for_where_there_is_https(config, control, secure):
    """And not elsewhere: a console on plain HTTP would lock itself out."""
    app = create_app(dataclasses.replace(config, cookie_secure=secure), control, follow=False)
    async with AsyncTestClient(app, base_url=BASE_URL) as visitor:
        for path in ("/sign-in", "/nowhere", "/static/frame.css"):
            headers = (await visitor.get(path, follow_redirects=False)).headers
            assert ("max-age=31536000" in headers.get("strict-transport-security", "")) == secure


@pytest.mark.parametrize(
    "path", ["/", "/access", "/backups", "/hardware", "/live?topic=strip", "/dashboard/load", "/profiles", "/nowhere"]
)
async def test_nothing_is_shown_without_a_session(client, path):
    """Every page, stream and file asks for a session first."""
    client.cookies.clear()
    page = await client.get(path, follow_redirects=False)
    assert page.headers["location"].startswith("/sign-in")
    data = await client.get(path, headers={"Accept": "application/json"})
    assert data.status_code == 401
    part = await client.get(path, headers={"HX-Request": "true"})
    assert part.headers["HX-Redirect"].startswith("/sign-in")


async def test_every_handler_is_guarded_unless_it_says_so(app):
    """Only set-up, sign-in and static files are open to visitors."""
    public = {
        route.path
        for route in app.routes
        for handler in getattr(route, "route_handlers", [getattr(route, "route_handler", None)])
        if handler is not None and handler.opt.get("public")
    }
    assert public == {"/setup", "/sign-in", "/static/{file_path:path}"}
