"""Failures as a person or a program gets them: the status, what happened, what to do, and nothing lost."""

from __future__ import annotations

import re

import pytest
from litestar import Litestar, post
from litestar.params import FromPath
from sqlalchemy import event, text

from console.profiles.store import ProfileStore
from console.refusals import Refusal
from tests.console.conftest import PASSWORD
from tests.tiny import write_checkpoint


def _make_unwritable(console) -> None:
    """From now on SQLite refuses this file's every write, as it does on a read-only disk."""
    _on_connect(console, "PRAGMA query_only = ON")


def _fill_the_disk(console, pages: int) -> None:
    """From now on the file cannot grow, as on a full disk."""
    _on_connect(console, f"PRAGMA max_page_count = {pages}")


def _on_connect(console, pragma: str) -> None:
    def apply(connection, record):
        cursor = connection.cursor()
        cursor.execute(pragma)
        cursor.close()

    engine = console.database._engine.sync_engine
    event.listen(engine, "connect", apply)
    engine.pool.dispose()
    engine.pool = engine.pool.recreate()


async def test_a_read_only_database(client, console, control):
    """503, naming the file and the remedy; pages can still be read, and the form can be sent again."""
    _make_unwritable(console)
    assert (await client.get("/access")).status_code == 200
    answer = await client.post("/access/keys", data={"name": "laptop"})
    assert answer.status_code == 503
    assert str(console.home.database) in answer.text
    assert "writable" in answer.text
    assert 'name="name" value="laptop"' in answer.text
    assert not console.home.api_keys.exists()
    await console.follower.look()
    assert control.calls == []


async def test_a_full_disk(client, console):
    """507, for people and programs alike, and what was there before is there still."""
    async with console.database.session() as session:
        pages = (await session.execute(text("PRAGMA page_count"))).scalar()
    _fill_the_disk(console, pages)
    note = "x" * 50
    for number in range(200):
        answer = await client.post("/access/keys", data={"name": f"{number} {note}"})
        if answer.status_code != 200:
            break
    assert answer.status_code == 507
    assert "disk" in answer.text
    data = await client.post("/access/keys", data={"name": f"{number} {note}"}, headers={"Accept": "application/json"})
    assert data.status_code == 507
    assert set(data.json()) == {"message", "remedy"}


async def test_htmx_gets_a_sentence_and_keeps_its_page(client, console):
    """A part's answer is the refusal alone: the page's script shows it, and the form stays as it is."""
    _make_unwritable(console)
    answer = await client.post("/access/keys", data={"name": "laptop"}, headers={"HX-Request": "true"})
    assert answer.status_code == 503
    assert 'class="refusal"' in answer.text
    assert "<html" not in answer.text


async def test_a_body_too_large(client):
    """413 before it is read to its end, with the limit."""
    answer = await client.post("/access/keys", data={"name": "x" * (5 * 1024 * 1024)})
    assert answer.status_code == 413
    assert "4 MiB" in answer.text


@pytest.mark.parametrize("action", ["explode", "%00", "a" * 2000])
async def test_an_unknown_action(client, control, action):
    """What is not start, stop or restart is refused and does nothing."""
    answer = await client.post(f"/engine/{action}")
    assert answer.status_code in (404, 405, 422)
    assert control.calls == []


@pytest.mark.parametrize("method", ["GET", "POST", "DELETE"])
@pytest.mark.parametrize("path", ["/nowhere", "/profiles/chat/no/such/form"])
async def test_an_unknown_page(client, method, path):
    """Whatever the method: there is nothing here that another one would reach."""
    assert (await client.request(method, path)).status_code == 404


def _paths_with_numbers(app: Litestar, number: int) -> list[tuple[str, str]]:
    """Method and path of each route that takes a number in its path."""
    paths = [(route, re.sub(r"\{\w+:int\}", str(number), route.path)) for route in app.routes]
    numbered = [(route, re.sub(r"\{[^}]*\}", "chat", path)) for route, path in paths if path != route.path]
    return [(method, path) for route, path in numbered for method in route.methods - {"OPTIONS", "HEAD"}]


@pytest.mark.parametrize("number", [10**21, -(10**21), 1 << 63, (1 << 63) - 1, -1, 0, 12_345])
async def test_a_number_that_nothing_has_is_not_found(client, app: Litestar, console, home, number):
    """Also one that no database could store."""
    write_checkpoint(home.models / "T")
    await ProfileStore(console.database).create({"name": "chat", "model": {"path": "T"}}, author="a")
    numbered = _paths_with_numbers(app, number)
    assert len(numbered) >= 3
    for method, path in numbered:
        answer = await client.request(method, path, headers={"Accept": "application/json"})
        assert answer.status_code == 404, path
        assert answer.json()["remedy"]


async def test_a_method_that_an_address_does_not_take(client):
    """Our page, and the methods that it does take."""
    answer = await client.request("PUT", "/profiles")
    assert answer.status_code == 405
    assert "GET" in answer.headers["allow"].split(", ")
    assert "Method Not Allowed" not in answer.text
    assert "<h1>" in answer.text


async def test_passwords_are_not_sent_back(client, console):
    """The page that offers to send a form again leaves passwords out."""
    _make_unwritable(console)
    form = {"password": "correct horse battery", "new-password": "my new password 1"}
    answer = await client.post("/access/password", data=form)
    assert answer.status_code == 503
    assert "my new password 1" not in answer.text
    assert "correct horse" not in answer.text


async def test_refusals_and_faults_have_pages(client, app: Litestar):
    """Each status has its title; a fault tells its kind to the page and its trace to the log only."""

    @post("/test/refuse/{status:int}")
    async def refuse(status: FromPath[int]) -> None:
        if status == 500:
            raise ZeroDivisionError("the secret detail")
        raise Refusal(status, f"It was {status}.", "Do something else.", field="thing", value=3)

    app.register(refuse)
    for status in (401, 403, 404, 413, 422, 429, 502, 503, 507):
        answer = await client.post(f"/test/refuse/{status}")
        assert answer.status_code == status
        assert f"It was {status}." in answer.text
        assert "Do something else." in answer.text
        data = await client.post(f"/test/refuse/{status}", headers={"Accept": "application/json"})
        assert data.json() == {
            "message": f"It was {status}.",
            "remedy": "Do something else.",
            "field": "thing",
            "value": 3,
        }
    fault = await client.post("/test/refuse/500")
    assert fault.status_code == 500
    assert "ZeroDivisionError" in fault.text
    assert "secret detail" not in fault.text


async def test_engine_control_that_cannot(client, console, control, monkeypatch):
    """What runs the engine says why it cannot; the page passes it on as 503."""
    from console.engine_control.base import EngineControlError
    from console.engine_control.docker_problems import unreachable

    async def refuse() -> None:
        raise EngineControlError(unreachable("unix:///nowhere.sock", "no such file"))

    monkeypatch.setattr(control, "restart", refuse)
    answer = await client.post("/engine/restart")
    assert answer.status_code == 503
    assert "unix:///nowhere.sock" in answer.text


@pytest.mark.parametrize(
    ("method", "path", "data", "field", "value", "right"),
    [
        ("POST", "/models/-/imports", {}, "source", None, ()),
        ("POST", "/models/-/comparisons", {"source": "x"}, "model", None, ()),
        ("POST", "/models/-/keys", {}, "key", None, ()),
        ("GET", "/live", None, "topic", None, ()),
        ("GET", "/profiles/chat/edit?revision=abc", None, "revision", "abc", ("number",)),
        ("GET", f"/profiles/chat/edit?revision=77{'7' * 5000}", None, "revision", "77", ("number",)),
        ("GET", "/profiles/chat/export?kind=zip", None, "kind", "zip", ("yaml", "json")),
        ("GET", "/profiles/chat/compare?everything=ja", None, "everything", "ja", ("true", "false")),
        ("GET", "/log?line=abc", None, "line", "abc", ("0", "1,000,000,000")),
        ("GET", "/log?line=-1", None, "line", "-1", ("0", "1,000,000,000")),
        ("GET", "/log/lines?from=0", None, "from", "0", ("1", "1,000,000,000")),
        ("GET", "/log/lines?count=9999", None, "count", "9999", ("0", "2,000")),
        ("GET", f"/log/matches?q={'x' * 1001}", None, "q", "1,001", ("1,000",)),
        ("GET", "/log/matches?after=1000000001", None, "after", "1000000001", ("0", "1,000,000,000")),
        ("GET", "/log/head?follows=ja", None, "follows", "ja", ("true", "false")),
        ("POST", "/engine/stop", {"when": "someday"}, "when", "someday", ("now", "when-finished")),
        ("POST", "/engine/stop", {"when": ["now", "now"]}, "when", "2", ("once",)),
        ("POST", "/profiles/chat/activate", {"anyway": "ja"}, "anyway", "ja", ("yes",)),
        ("POST", "/access/password", {"new-password": ["a", "b"]}, "new-password", "2", ("once",)),
        ("POST", "/profiles/-/new", {"name": ["a", "b"]}, "name", "2", ("once",)),
    ],
)
async def test_a_field_that_is_missing_or_wrong_is_named(client, method, path, data, field, value, right):
    """With what was sent and what is right, and none of the framework's words."""
    answer = await client.request(method, path, data=data, headers={"Accept": "application/json"})
    told = answer.json()
    assert (answer.status_code, told["field"]) == (422, field)
    assert field in told["message"]
    assert value is None or value in told["message"]
    assert told["remedy"]
    assert all(word in told["remedy"] for word in right)
    assert len(told["message"]) < 200
    for word in ("parameter", "Object", "Expected", "Integer", "enum", "data:"):
        assert word not in told["message"]


@pytest.mark.parametrize(
    ("path", "data", "status", "field"),
    [
        ("/profiles/-/new", {"view": "yaml", "yaml": "name: other"}, 422, "model.path"),
        ("/profiles/-/new", {"view": "yaml", "yaml": "name: ["}, 422, None),
        ("/profiles/-/new", {"view": "yaml", "yaml": "name: chat\nmodel: {path: T}"}, 409, "name"),
        ("/profiles/chat/edit", {"view": "yaml", "base": "1", "yaml": "name: chat"}, 422, "model.path"),
        ("/profiles/chat/edit", {"view": "yaml", "base": "0", "yaml": "name: chat\nmodel: {path: U}"}, 409, "base"),
        ("/access/keys", {"name": ""}, 422, "name"),
        ("/access/password", {"password": "wrong", "new-password": "correct horse 2"}, 422, "password"),
        ("/access/password", {"password": PASSWORD, "new-password": "x"}, 422, "new-password"),
    ],
)
async def test_a_program_gets_json_where_a_person_gets_the_form_again(client, console, home, path, data, status, field):
    write_checkpoint(home.models / "T")
    await ProfileStore(console.database).create({"name": "chat", "model": {"path": "T"}}, author="a")
    answer = await client.post(path, data=data, headers={"Accept": "application/json"})
    assert (answer.status_code, answer.json().get("field")) == (status, field)
    assert answer.json()["message"]
    assert answer.json()["remedy"]
    shown = await client.post(path, data=data)
    assert shown.status_code == status
    assert "<form" in shown.text
