"""Set-up, sign-in, sessions: who gets in and who does not."""

from __future__ import annotations

import asyncio
import dataclasses
import time
from typing import Any, cast

import httpx
import pytest
from sqlalchemy import select, update

from appliance.address import network_of
from console.access import setup
from console.access.next_page import local_path
from console.access.sessions import COOKIE, hashed
from console.access.throttle import (
    FAILURES,
    FAILURES_OF_ACCOUNT,
    FAILURES_OF_KNOWN_ADDRESS,
    REMEMBERED,
    WINDOW_S,
    Throttle,
)
from console.app import create_app
from console.db.models import SetUpCode, SignIn, User
from tests.console.conftest import BASE_URL, BROWSER, PASSWORD


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
    assert 'class="callout callout-bad"' in answer.text


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
        ({"name": " "}, "name"),
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


@pytest.mark.parametrize(
    ("change", "field"), [({"code": "wrong"}, "code"), ({"name": " "}, "name"), ({"password": "short"}, "password")]
)
async def test_a_program_is_refused_set_up_in_json(visitor, code, change, field):
    form = {"code": code, "name": "ada", "password": PASSWORD, **change}
    answer = await visitor.post("/setup", data=form, headers={"Accept": "application/json"})
    assert (answer.status_code, answer.json()["field"]) == (422, field)


async def test_a_program_is_refused_sign_in_in_json(client):
    client.cookies.clear()
    form = {"name": "admin", "password": "not the password"}
    answer = await client.post("/sign-in", data=form, headers={"Accept": "application/json"})
    assert (answer.status_code, answer.json()["field"]) == (422, "password")


@pytest.mark.parametrize("address", ["/setup", "/sign-in"])
async def test_json_is_no_form_and_counts_as_no_guess(visitor, code, address):
    content = {"code": code, "name": "ada", "password": PASSWORD}
    for _ in range(FAILURES + 1):
        answer = await visitor.post(address, json=content, headers={"Accept": "application/json"})
        assert (answer.status_code, "field" in answer.json()) == (415, False)
    answer = await visitor.post("/setup", data=content, follow_redirects=False)
    assert answer.status_code == 303


async def test_guessing_the_code_is_throttled(visitor, code):
    """After five wrong codes even the right one has to wait."""
    for _ in range(FAILURES):
        await visitor.post("/setup", data={"code": "guess", "name": "eve", "password": PASSWORD})
    answer = await visitor.post("/setup", data={"code": code, "name": "eve", "password": PASSWORD})
    assert answer.status_code == 429


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
        assert 'class="callout callout-bad"' in answer.text
    answer = await client.post("/sign-in", data={"name": name, "password": PASSWORD})
    assert answer.status_code == 429
    assert 0 < int(answer.headers["retry-after"]) <= 300
    as_program = {"Accept": "application/json"}
    answer = await client.post("/sign-in", data={"name": name, "password": PASSWORD}, headers=as_program)
    assert (answer.status_code, 0 < int(answer.headers["retry-after"]) <= 300) == (429, True)


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
    """Failures count for each key up to its own limit, and are forgotten after five minutes or a success."""
    now = [0.0]
    throttle = Throttle(clock=lambda: now[0])
    for second in range(FAILURES):
        now[0] = second
        throttle.attempt({"address 1": FAILURES, f"account {second}": FAILURES})
    assert throttle.wait_s({"address 1": FAILURES, "account new": 1}) == pytest.approx(WINDOW_S - FAILURES + 1)
    assert throttle.wait_s({"address 1": FAILURES + 1}) == 0
    assert throttle.wait_s({"account 0": FAILURES}) == 0
    now[0] = WINDOW_S
    assert throttle.wait_s({"address 1": FAILURES}) == 0
    throttle.attempt({"address 1": 1})
    throttle.succeeded("address 1")
    assert throttle.wait_s({"address 1": 1}) == 0


def test_a_flood_does_not_let_a_guesser_begin_anew():
    """Thousands of addresses, each with a name of its own, push neither the account nor the guesser out of memory, and
    nobody who signed in before has to wait."""
    throttle = Throttle(clock=lambda: 0.0)
    guesser = {"address 6.6.6.6": FAILURES, "account admin": FAILURES_OF_ACCOUNT}
    for number in range(FAILURES_OF_ACCOUNT):
        throttle.attempt({f"address 6.6.{number}.6": FAILURES, "account admin": FAILURES_OF_ACCOUNT})
    for number in range(2 * REMEMBERED):
        throttle.attempt({f"address {number}": FAILURES, f"account {number}": FAILURES_OF_ACCOUNT})
    assert throttle.wait_s(guesser) > 0
    assert throttle.wait_s({"account admin from 10.0.0.1": FAILURES_OF_KNOWN_ADDRESS}) == 0
    assert len(throttle._failures) <= REMEMBERED


@pytest.mark.parametrize(
    ("address", "network"),
    [
        ("10.0.0.7", "10.0.0.7"),
        ("::ffff:10.0.0.7", "10.0.0.7"),
        ("2001:db8::1", "2001:db8::/64"),
        ("2001:db8::ffff:1:2:3", "2001:db8::/64"),
        ("fe80::1%eth0", "fe80::/64"),
        ("testclient", "testclient"),
    ],
)
def test_a_network_of_ipv6_counts_as_one_address(address, network):
    """Whoever has one of its addresses has all 2^64."""
    assert network_of(address) == network


@pytest.fixture
def proxied(config, control):
    """A console behind the proxy of ours."""
    return create_app(dataclasses.replace(config, proxy="localhost"), control, follow=False)


@pytest.fixture
async def come_from(proxied):
    """Tries to sign in as the administrator from any address, which the proxy tells; the status of the answer."""
    app = proxied
    async with app.state.console.database.session() as session:
        await setup.make_administrator(session, "admin", PASSWORD, code=await setup.new_code(session))
    transport = httpx.ASGITransport(cast(Any, app), client=("127.0.0.1", 5000))

    async def sign_in(address: str, password: str, name: str = "admin") -> int:
        headers = {**BROWSER, "Accept": "application/json", "X-Forwarded-For": address}
        async with httpx.AsyncClient(transport=transport, base_url=BASE_URL) as browser:
            answer = await browser.post("/sign-in", data={"name": name, "password": password}, headers=headers)
        return answer.status_code

    return sign_in


async def test_wrong_passwords_from_elsewhere_lock_nobody_out(come_from):
    """Neither where the administrator signed in before, nor at a new address."""
    assert await come_from("10.0.0.1", PASSWORD) == 303
    for _ in range(FAILURES):
        assert await come_from("6.6.6.6", "wrong") == 422
    assert await come_from("6.6.6.6", PASSWORD) == 429
    assert await come_from("10.0.0.1", PASSWORD) == 303
    assert await come_from("10.0.0.2", PASSWORD) == 303


async def test_an_address_that_signed_in_before_is_not_locked_by_a_handful(come_from):
    """Somebody who shares it, or forgot the password, does not keep it waiting; and the known address stays so in a new
    process, after signing out."""
    assert await come_from("10.0.0.1", PASSWORD) == 303
    for _ in range(2 * FAILURES):
        assert await come_from("10.0.0.1", "wrong") == 422
    assert await come_from("10.0.0.1", PASSWORD) == 303


async def test_guesses_from_many_addresses_are_throttled_by_account(come_from, monkeypatch):
    """All strangers together, but never an address that signed in before."""
    assert await come_from("10.0.0.1", PASSWORD) == 303

    async def wrong(stored, password):
        return password == PASSWORD

    monkeypatch.setattr("console.access.passwords.is_password", wrong)
    for number in range(FAILURES_OF_ACCOUNT):
        assert await come_from(f"6.6.{number}.6", "wrong") == 422
    assert await come_from("6.6.7.7", PASSWORD) == 429
    assert await come_from("10.0.0.1", PASSWORD) == 303


async def test_guesses_at_the_door_do_not_keep_a_password_from_being_changed(client):
    """A signed-in browser's own tries are counted apart."""
    for _ in range(FAILURES):
        await client.post("/sign-in", data={"name": "admin", "password": "wrong"})
    answer = await client.post("/access/password", data={"password": PASSWORD, "new-password": "another long one"})
    assert answer.status_code == 200


async def test_sessions_expire(client, console):
    """A session that ran out is no session."""
    async with console.database.session() as session:
        await session.execute(update(SignIn).values(expires=time.time() - 1))
    assert (await client.get("/", follow_redirects=False)).headers["location"] == "/sign-in"


ELSEWHERE = [
    "https://evil.example/",
    "//evil.example",
    "/\\evil.example",
    "javascript:x()",
    "/\t/evil.example",
    "/\n/evil.example",
    "\t//evil.example",
    "/%09/evil.example",
    "/%2fevil.example",
    "/%5cevil.example",
    "/%255cevil.example",
    "/%2525252525252509/evil.example",
    "/a//evil.example",
    "/access\x7f",
    "/access\u2028",
    "",
    "access",
]


@pytest.mark.parametrize("target", ELSEWHERE)
def test_places_elsewhere_are_the_dashboard(target):
    """However they are spelled."""
    assert local_path(target) == "/"


@pytest.mark.parametrize("hx", [{}, {"HX-Request": "true"}])
async def test_sign_in_leads_nowhere_else(client, hx):
    """`next` is an address of this console, or it is the dashboard; for htmx, and for who is signed in already, too."""
    target = "/\t/evil.example"
    seen = await client.get("/sign-in", params={"next": target}, follow_redirects=False)
    assert seen.headers["location"] == "/"
    client.cookies.clear()
    form = {"name": "admin", "password": PASSWORD, "next": target}
    answer = await client.post("/sign-in", data=form, headers=hx, follow_redirects=False)
    assert answer.headers["hx-redirect" if hx else "location"] == "/"


@pytest.mark.parametrize(
    ("target", "place"),
    [
        ("/profiles/x?tab=diff&from=//a", "/profiles/x?tab=diff&from=//a"),
        ("/profiles/a%20b", "/profiles/a%20b"),
        ("/log?q=\u00e4 b", "/log?q=%C3%A4%20b"),
        ("/log#end", "/log"),
    ],
)
def test_places_of_our_own_are_kept(target, place):
    """With nothing raw in them."""
    assert local_path(target) == place


async def test_a_new_password_signs_other_browsers_out(client, console):
    """Whoever knew the old password, or holds an old session, is out."""
    async with console.database.session() as session:
        user = (await session.scalars(select(User))).one()
        session.add(SignIn(token_sha256=hashed("other"), user_id=user.id, expires=4e9))
    wrong = await client.post("/access/password", data={"password": "no", "new-password": "another long one"})
    assert wrong.status_code == 422
    right = await client.post("/access/password", data={"password": PASSWORD, "new-password": "another long one"})
    assert right.status_code == 200
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
