"""The form in a real browser: what is wrong is marked while somebody types, nothing typed is lost, and every page of
profiles passes axe-core in light and dark, wide and narrow."""

from __future__ import annotations

import asyncio
import re
import socket
import threading
import time
from pathlib import Path

import pytest
import uvicorn
from playwright.sync_api import expect
from sqlalchemy import delete

from console.access.sessions import COOKIE, hashed
from console.access.setup import make_administrator, new_code
from console.app import create_app
from console.db import schema
from console.db.models import ActiveRevision, SignIn
from console.db.sessions import Database
from console.profiles.store import ProfileStore
from console.settings import ConsoleConfig
from tests.console.conftest import PASSWORD, RememberingControl
from tests.tiny import write_checkpoint

pytestmark = pytest.mark.browser
AXE = next((Path(__file__).parent / "vendor").glob("axe-core-*.min.js"))


@pytest.fixture
def url(home):
    """A console on a real port with a few profiles, and an engine control that only remembers."""
    home.create()
    schema.migrate(home.database, home.root / "backups")
    write_checkpoint(home.models / "Tiny")
    in_a_thread(fill(home))
    listening = socket.create_server(("127.0.0.1", 0))
    config = ConsoleConfig(home=home, engine_port=9, port=listening.getsockname()[1])
    app = create_app(config, RememberingControl(), follow=False)
    server = uvicorn.Server(uvicorn.Config(app, log_level="error", timeout_graceful_shutdown=1))
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]}, daemon=True)
    thread.start()
    while not server.started:
        time.sleep(0.01)
    yield f"http://127.0.0.1:{config.port}"
    app.state.console.hub.close()
    server.should_exit = True
    thread.join(10)


def in_a_thread(work):
    """Playwright's own event loop holds this one."""
    thread = threading.Thread(target=asyncio.run, args=[work])
    thread.start()
    thread.join(30)


async def fill(home):
    database = Database(home.database)
    async with database.session() as session:
        user = await make_administrator(session, "admin", PASSWORD, code=await new_code(session))
        session.add(SignIn(token_sha256=hashed("test-token"), user_id=user.id, expires=4e9))
    store = ProfileStore(database)
    made = await store.create({"name": "chat", "model": {"path": "Tiny"}}, author="admin", note="First.")
    await store.save("chat", {"name": "chat", "model": {"path": "Tiny"}, "max-num-seqs": 8}, base=1, author="ann")
    await store.create({"name": "gone", "model": {"path": "Gone-7B"}}, author="ann")
    async with database.writing() as session:
        session.add(ActiveRevision(revision_id=made.id))
    await database.close()


async def sign_everybody_out(home):
    database = Database(home.database)
    async with database.writing() as session:
        await session.execute(delete(SignIn))
    await database.close()


@pytest.fixture
def page(browser, url):
    context = browser.new_context(base_url=url, viewport={"width": 1280, "height": 900}, reduced_motion="reduce")
    context.add_cookies([{"name": COOKIE, "value": "test-token", "url": url}])
    page = context.new_page()
    faults = []
    page.on("pageerror", lambda error: faults.append(str(error)))
    yield page
    context.close()
    assert faults == []


def test_what_is_wrong_is_marked_as_one_types_and_unmarked_when_it_is_corrected(page):
    page.goto("/profiles/chat/edit")
    field = page.get_by_label("Max sequences")
    field.fill("9000")
    expect(field).to_have_attribute("aria-invalid", "true")
    expect(page.locator("#note-max-num-seqs")).to_contain_text("9,000")
    expect(page.locator("#check [data-verdict=invalid]")).to_be_visible()
    expect(field).to_be_focused()
    field.fill("9")
    expect(field).not_to_have_attribute("aria-invalid", "true")
    expect(page.locator("#check [data-verdict=ready]")).to_be_visible()


def test_the_keyboard_alone_makes_a_profile(page):
    page.goto("/profiles/-/new")
    page.locator("#setting-name").focus()
    page.keyboard.type("by-keyboard")
    page.keyboard.press("Tab")
    page.keyboard.type("Tiny")
    page.keyboard.press("Shift+Tab")
    page.keyboard.press("Enter")
    expect(page.get_by_role("heading", level=1, name="by-keyboard")).to_be_visible()


def test_what_was_typed_survives_a_session_that_ran_out(page, home):
    page.goto("/profiles/chat/edit")
    page.get_by_label("Max sequences").fill("77")
    in_a_thread(sign_everybody_out(home))
    page.get_by_role("button", name="Save", exact=True).click()
    page.goto("/sign-in")
    page.get_by_label("Name").fill("admin")
    page.get_by_label("Password").fill(PASSWORD)
    page.keyboard.press("Enter")
    page.wait_for_url(re.compile(r"/$"))
    page.goto("/profiles/chat/edit")
    expect(page.locator("[data-draft-restored]")).to_be_visible()
    expect(page.get_by_label("Max sequences")).to_have_value("77")
    page.get_by_role("button", name="Save", exact=True).click()
    expect(page.get_by_text("r3 is the latest revision")).to_be_visible()
    page.goto("/profiles/chat/edit")
    expect(page.locator("[data-draft-restored]")).to_be_hidden()


def test_yaml_that_was_typed_comes_back_as_yaml(page):
    page.goto("/profiles/chat/edit")
    page.get_by_role("button", name="As YAML").click()
    text = "name: chat\nmodel: {path: Tiny}\nmax-seqs: 3\n"
    page.get_by_label("The whole profile").fill(text)
    expect(page.locator("#check")).to_contain_text("max-num-seqs")
    page.goto("/profiles/chat/edit")
    expect(page.get_by_label("The whole profile")).to_have_value(text)


def test_a_discarded_draft_is_gone(page):
    page.goto("/profiles/chat/edit")
    page.get_by_label("Max sequences").fill("77")
    page.goto("/profiles/chat/edit")
    page.locator("[data-draft-discard]").click()
    expect(page.get_by_label("Max sequences")).to_have_value("8")
    expect(page.locator("[data-draft-restored]")).to_be_hidden()


def test_a_fix_is_applied_in_the_form_and_other_fields_stay(page):
    """The nearest known key is offered as a fix for a misspelt one."""
    page.goto("/profiles/chat/edit")
    page.get_by_role("button", name="As YAML").click()
    page.get_by_label("The whole profile").fill("name: chat\nmodel: {path: Tiny}\nmax-seqs: 3\ndtype: float16\n")
    page.locator("#check").get_by_role("button", name="Apply").first.click()
    area = page.get_by_label("The whole profile")
    expect(area).to_have_value(re.compile("max-num-seqs: 3"))
    expect(area).to_have_value(re.compile("dtype: float16"))


@pytest.mark.parametrize(("scheme", "width"), [("light", 1280), ("dark", 390)])
def test_no_page_of_profiles_violates_axe(browser, url, scheme, width):
    context = browser.new_context(
        base_url=url, viewport={"width": width, "height": 844}, color_scheme=scheme, reduced_motion="reduce"
    )
    context.add_cookies([{"name": COOKIE, "value": "test-token", "url": url}])
    page = context.new_page()

    def check():
        page.evaluate(AXE.read_text(encoding="utf-8"))
        found = page.evaluate("axe.run(document, {resultTypes: ['violations']})")["violations"]
        assert [(page.url, it["id"], it["nodes"][0]["html"]) for it in found] == []
        wide = page.evaluate("document.documentElement.scrollWidth > document.documentElement.clientWidth")
        assert not wide, f"{page.url} scrolls sideways at {width} px"

    for path in (
        "/profiles", "/profiles/chat", "/profiles/gone", "/profiles/-/new", "/profiles/-/import", "/profiles/chat/edit",
        "/profiles/chat/revisions/2", "/profiles/chat/compare?before=1&after=2&everything=true",
    ):  # fmt: skip
        page.goto(path)
        check()
    page.goto("/profiles/gone")
    page.get_by_role("button", name="Activate r1").first.click()
    page.get_by_role("heading", name="gone r1").wait_for()
    check()
    page.goto("/profiles/-/import")
    page.get_by_label("Or paste one").fill("name: chat\nmodel: {path: Tiny}\nmax-num-seqs: 4\n")
    page.get_by_role("button", name="Review changes").click()
    page.locator("#plan-title").wait_for()
    check()
    page.goto("/profiles/chat/edit")
    page.get_by_label("Max sequences").fill("0")
    page.get_by_role("button", name="Save", exact=True).click()
    page.locator(".callout-bad").wait_for()
    check()
    context.close()
