"""Set-up, sign-in, sessions: who gets in and who does not."""

from __future__ import annotations

import asyncio
import time

import pytest
from sqlalchemy import select, update

from console.access import setup
from console.access.sessions import COOKIE, hashed
from console.access.throttle import FAILURES, WINDOW_S, Throttle
from console.db.models import SetUpCode, SignIn, User
from tests.console.conftest import PASSWORD


@pytest.fixture
async def code(console):
    async with console.database.session() as session:
        return await setup.new_code(session)


async def test_set_up_makes_the_administrator_once(visitor, console, code):
    """The code from the terminal makes one account, signs it in, and is worth nothing afterwards."""
    shown = await visitor.get(f"/setup?code={code}")
    assert code in shown.text
    form = {"code": code, "name": "ada", "password": PASSWORD}
    answer = await visitor.post("/setup", data=form, follow_redirects=False)
    assert answer.status_code == 303
    cookie = answer.headers["set-cookie"].lower()
    for part in ("httponly", "samesite=strict", "path=/", "max-age="):
        assert part in cookie
    assert (await visitor.get("/", follow_redirects=False)).status_code == 200
    async with console.database.session() as session:
        assert (await session.scalars(select(User.name))).all() == ["ada"]
        assert await session.scalar(select(SetUpCode)) is None
        assert await setup.new_code(session) is None
    visitor.cookies.clear()
    again = await visitor.post("/setup", data={**form, "name": "eve"}, follow_redirects=False)
    assert again.headers["location"] == "/sign-in"


async def test_the_database_holds_hashes_only(visitor, console, code):
    """Neither the code, nor the password, nor the session's token can be read out of the file."""
    await visitor.post("/setup", data={"code": code, "name": "ada", "password": PASSWORD})
    async with console.database.session() as session:
        user = (await session.scalars(select(User))).one()
        signed_in = (await session.scalars(select(SignIn))).one()
    assert user.password_hash.startswith("$argon2id$")
    assert signed_in.token_sha256 == hashed(visitor.cookies[COOKIE])
    raw = console.home.database.read_bytes() + (console.home.database.with_name("ingot.db-wal")).read_bytes()
    for secret in (code, PASSWORD, visitor.cookies[COOKIE]):
        assert secret.encode() not in raw


async def test_a_new_code_replaces_the_old(visitor, console, code):
    """Only the code of the last start opens the door."""
    async with console.database.session() as session:
        await setup.new_code(session)
    answer = await visitor.post("/setup", data={"code": code, "name": "ada", "password": PASSWORD})
    assert answer.status_code == 422
    assert "ingot up" in answer.text


async def test_two_who_use_the_code_at_once(visitor, console, code):
    """One account is made; the other is told, or led to the sign-in."""
    forms = [{"code": code, "name": name, "password": PASSWORD} for name in ("ada", "eve")]
    answers = await asyncio.gather(*(visitor.post("/setup", data=form, follow_redirects=False) for form in forms))
    assert sorted(answer.headers.get("location", "") == "/" for answer in answers) == [False, True]
    async with console.database.session() as session:
        assert len((await session.scalars(select(User))).all()) == 1


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"code": "wrong"}, "set-up code"),
        ({"name": " "}, "name is empty"),
        ({"name": "x" * 65}, "64"),
        ({"password": "short"}, "5 characters"),
        ({"password": "x" * 300}, "300 characters"),
    ],
)
async def test_set_up_says_what_is_wrong(visitor, code, change, said):
    """Each refusal names the value, and the form keeps what was typed, but never a password."""
    answer = await visitor.post("/setup", data={"code": code, "name": "ada", "password": PASSWORD, **change})
    assert answer.status_code == 422
    assert said in answer.text
    assert PASSWORD not in answer.text


async def test_guessing_the_code_is_throttled(visitor, code):
    """After five wrong codes even the right one has to wait."""
    for _ in range(FAILURES):
        await visitor.post("/setup", data={"code": "guess", "name": "eve", "password": PASSWORD})
    answer = await visitor.post("/setup", data={"code": code, "name": "eve", "password": PASSWORD})
    assert answer.status_code == 429
    assert "Try again in" in answer.text


async def test_sign_in_and_out(client):
    """The right password opens a session; signing out ends it on the server, not only in the browser."""
    client.cookies.clear()
    answer = await client.post(
        "/sign-in", data={"name": "admin", "password": PASSWORD, "next": "/access"}, follow_redirects=False
    )
    assert answer.headers["location"] == "/access"
    token = client.cookies[COOKIE]
    await client.post("/sign-out")
    client.cookies.set(COOKIE, token)
    answer = await client.get("/access", follow_redirects=False)
    assert answer.headers["location"] == "/sign-in?next=%2Faccess"


@pytest.mark.parametrize("name", ["admin", "nobody"])
async def test_wrong_sign_ins_look_alike_and_are_throttled(client, name):
    """Whether an account exists cannot be told from the answer; five failures end the tries, for either."""
    client.cookies.clear()
    for _ in range(FAILURES):
        answer = await client.post("/sign-in", data={"name": name, "password": "not the password"})
        assert answer.status_code == 422
        assert "The name or the password is not right." in answer.text
    answer = await client.post("/sign-in", data={"name": name, "password": PASSWORD})
    assert answer.status_code == 429


async def test_guesses_sent_at_once_are_counted_before_they_are_judged(client, monkeypatch):
    """Forty at a time get no further than five one after the other."""
    judged = []

    async def judge(stored, password):
        judged.append(password)
        await asyncio.sleep(0.05)
        return False

    monkeypatch.setattr("console.access.passwords.is_password", judge)
    client.cookies.clear()
    guesses = [{"name": "admin", "password": f"guess {number}"} for number in range(40)]
    answers = await asyncio.gather(*(client.post("/sign-in", data=guess) for guess in guesses))
    assert sorted(answer.status_code for answer in answers) == [422] * FAILURES + [429] * 35
    assert len(judged) == FAILURES


def test_throttle_counts_each_key_and_forgets():
    """Failures count for the address and for the account, and are forgotten after five minutes or a success."""
    now = [0.0]
    throttle = Throttle(clock=lambda: now[0])
    for second in range(FAILURES):
        now[0] = second
        throttle.attempt("address 1", f"account {second}")
    assert throttle.wait_s("address 1", "account new") == pytest.approx(WINDOW_S - FAILURES + 1)
    assert throttle.wait_s("account 0") == 0
    now[0] = WINDOW_S
    assert throttle.wait_s("address 1") == 0
    throttle.attempt("address 1")
    throttle.succeeded("address 1")
    assert throttle.wait_s("address 1") == 0


async def test_sessions_expire(client, console):
    """A session that ran out is no session."""
    async with console.database.session() as session:
        await session.execute(update(SignIn).values(expires=time.time() - 1))
    assert (await client.get("/", follow_redirects=False)).headers["location"] == "/sign-in"


@pytest.mark.parametrize("target", ["https://evil.example/", "//evil.example", "/\\evil.example", "javascript:x()"])
async def test_sign_in_leads_nowhere_else(client, target):
    """`next` is an address of this console, or it is the dashboard."""
    client.cookies.clear()
    form = {"name": "admin", "password": PASSWORD, "next": target}
    answer = await client.post("/sign-in", data=form, follow_redirects=False)
    assert answer.headers["location"] == "/"


async def test_a_new_password_signs_other_browsers_out(client, console):
    """Whoever knew the old password, or holds an old session, is out."""
    async with console.database.session() as session:
        user = (await session.scalars(select(User))).one()
        session.add(SignIn(token_sha256=hashed("other"), user_id=user.id, expires=4e9))
    wrong = await client.post("/access/password", data={"password": "no", "new-password": "another long one"})
    assert wrong.status_code == 422
    right = await client.post("/access/password", data={"password": PASSWORD, "new-password": "another long one"})
    assert right.status_code == 200
    assert "other browsers are signed out" in right.text
    client.cookies.set(COOKIE, "other")
    assert (await client.get("/", follow_redirects=False)).status_code == 303
    client.cookies.clear()
    form = {"name": "admin", "password": "another long one"}
    assert (await client.post("/sign-in", data=form, follow_redirects=False)).status_code == 303


async def test_sign_out_everywhere(client, console):
    """Every session of the account ends, this one too."""
    answer = await client.post("/access/sessions/end-all", follow_redirects=False)
    assert answer.headers["location"] == "/sign-in"
    async with console.database.session() as session:
        assert (await session.scalars(select(SignIn))).all() == []
