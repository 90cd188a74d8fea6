"""After any form: a reload, and the same address opened again, are safe and show a page."""

from __future__ import annotations

import re
from typing import Any

import pytest

from console.after_post import KEPT_FOR_S, MOST_OF_A_SESSION, Answers
from console.pages import section

PAGE = {"Accept": "text/html"}


def _post_routes(app) -> list[str]:
    return sorted(
        {
            re.sub(r"\{(\w+):(\w+)\}", lambda found: "1" if found[2] == "int" else "x", route.path)
            for route in app.routes
            for handler in getattr(route, "route_handlers", [])
            if "POST" in handler.http_methods
        }
    )


async def test_every_post_is_followed_by_a_get(client, app):
    """No form is answered with a page at its own request: whatever it sends, F5 asks with GET."""
    routes = _post_routes(app)
    assert len(routes) > 20
    for path in routes:
        answer = await client.post(path, data={"name": "x"}, headers=PAGE, follow_redirects=False)
        is_page = answer.headers.get("content-type", "").startswith("text/html") and answer.content
        assert not is_page, path
        if path in ("/sign-out", "/access/sessions/end-all"):
            client.cookies.set("ingot-session", "test-token")


async def test_the_address_of_a_form_opened_again_shows_a_page(client, app):
    """Never a bare 405."""
    for path in _post_routes(app):
        answer = await client.get(path, headers=PAGE, follow_redirects=False)
        assert answer.status_code in (200, 303, 404, 422), path


async def test_a_refusal_can_be_reloaded(client, control):
    """It stays, with its status, until it is forgotten; then the address shows the section's page."""
    first = await client.post("/access/keys/nothing/revoke", follow_redirects=False)
    assert first.status_code == 303
    assert first.content == b""
    address = first.headers["location"]
    assert address.startswith("/access?answer=")
    for _ in range(2):
        shown = await client.get(address)
        assert shown.status_code == 404
        assert 'class="refused-status"' in shown.text
    assert (await client.get("/access?answer=unknown")).status_code == 200


async def test_a_form_with_problems_keeps_its_address_and_what_was_typed(client):
    """Where the form's address has a page, that is where it is shown."""
    typed = {"code": "wrong", "name": "somebody", "password": "long enough password"}
    client.cookies.clear()
    answer = await client.post("/sign-in", data=typed, follow_redirects=False)
    assert answer.headers["location"].startswith("/sign-in?answer=")
    shown = await client.get(answer.headers["location"])
    assert shown.status_code == 422
    assert 'value="somebody"' in shown.text
    assert "long enough password" not in shown.text


async def test_an_answer_is_shown_to_its_own_session_only(client):
    """Somebody else who opens the address gets the page as ever."""
    answer = await client.post("/access/keys", data={"name": ""}, follow_redirects=False)
    client.cookies.clear()
    other = await client.get(answer.headers["location"], follow_redirects=False)
    assert other.headers["location"].startswith("/sign-in")


@pytest.mark.parametrize(
    "headers", [{"HX-Request": "true"}, {"Accept": "application/json"}, {"Sec-Fetch-Mode": "cors"}]
)
async def test_scripts_and_programs_are_answered_at_once(client, headers):
    """They have no address that could be reloaded."""
    answer = await client.post("/access/keys/nothing/revoke", headers=headers, follow_redirects=False)
    assert answer.status_code == 404


async def test_answers_are_few_and_forgotten(client, app):
    """A session's oldest make room, and half an hour later nothing is left."""
    now = [0.0]
    answers = Answers(clock=lambda: now[0])
    scope: Any = {"type": "http", "method": "POST", "path": "/access/keys", "headers": [(b"accept", b"text/html")]}
    scope |= {"litestar_app": app, "user": type("User", (), {"session_id": 1})}
    for _ in range(MOST_OF_A_SESSION + 5):
        headers = [(b"content-type", b"text/html"), (b"content-length", b"4")]
        start: Any = {"type": "http.response.start", "status": 422, "headers": headers}
        sent: Any = dict(scope)
        await answers.redirect(start, sent)
    assert len(answers._kept) == MOST_OF_A_SESSION
    now[0] = KEPT_FOR_S
    answers._forget_old()
    assert answers._kept == {}


@pytest.mark.parametrize(
    ("path", "page"), [("/access/keys/x/revoke", "/access"), ("/engine/stop", "/"), ("/", "/"), ("/log", "/log")]
)
def test_an_address_belongs_to_a_section(path, page):
    assert section(path) == page


@pytest.mark.parametrize(
    "path", ["/sign-in", "/setup", "/", "/access", "/live?topic=strip", "/nowhere", "/static/frame.css"]
)
async def test_head_is_get_without_its_body(client, path):
    """For monitors and load balancers: the same status and headers; a stream ends at once."""
    head = await client.head(path, follow_redirects=False)
    assert head.content == b""
    if not path.startswith("/live"):
        get = await client.get(path, follow_redirects=False)
        assert head.status_code == get.status_code
        assert head.headers.keys() == get.headers.keys()
    assert head.status_code != 405
