"""Every page for everyone: no violation that axe-core finds, nothing wider than a phone, all of it by keyboard."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from playwright.sync_api import BrowserContext, Page, expect

from tests.running import Appliance

AXE = next((Path(__file__).parent / "vendor").glob("axe-core-*.min.js"))
PAGES = (
    "/",
    "/profiles",
    "/profiles/ingot-guide",
    "/profiles/ingot-guide/edit",
    "/profiles/-/new",
    "/profiles/-/import",
    "/launches",
    "/log",
    "/models",
    "/hardware",
    "/playground",
    "/benchmarks",
    "/access",
    "/backups",
    "/no-such-page",
)


def violations(page: Page) -> list[str]:
    page.evaluate(AXE.read_text())
    found = page.evaluate("async () => (await axe.run()).violations")
    return [json.dumps({"id": v["id"], "where": [n["html"][:160] for n in v["nodes"][:3]]}) for v in found]


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("path", PAGES)
def test_axe_finds_no_violation(page: Page, running: Appliance, path, scheme):
    running.wait_ready()
    page.emulate_media(color_scheme=scheme, reduced_motion="reduce")
    page.goto(running.console + path)
    page.wait_for_timeout(300)
    assert violations(page) == []


@pytest.mark.parametrize("path", PAGES)
def test_a_phone_shows_it_without_scrolling_sideways(page: Page, running: Appliance, path):
    running.wait_ready()
    page.set_viewport_size({"width": 360, "height": 740})
    page.goto(running.console + path)
    assert page.evaluate("document.documentElement.scrollWidth") <= 360
    assert violations(page) == []


def test_a_launch_page_is_accessible_too(page: Page, running: Appliance):
    page.goto(f"{running.console}/launches/{running.wait_ready()['launch']['id']}")
    assert violations(page) == []


def test_pages_are_reached_by_keyboard_alone(page: Page, running: Appliance):
    """`g` and a letter goes, `?` shows the keys, Escape closes, the first Tab offers to skip the rail."""
    page.goto(running.console)
    page.keyboard.press("g")
    page.keyboard.press("p")
    expect(page.get_by_role("heading", name="Profiles", level=1)).to_be_visible()
    page.keyboard.press("?")
    expect(page.get_by_role("dialog")).to_be_visible()
    page.keyboard.press("Escape")
    expect(page.get_by_role("dialog")).to_be_hidden()
    page.goto(running.console)
    page.keyboard.press("Tab")
    assert "content" in page.evaluate("document.activeElement.getAttribute('href') ?? ''")


def test_whoever_is_not_signed_in_sees_nothing_but_the_way_in(browser, running: Appliance, signed_in: BrowserContext):
    context = browser.new_context()
    page = context.new_page()
    for path in ("/", "/profiles", "/log", "/backups", "/live"):
        page.goto(running.console + path)
        expect(page.get_by_role("button", name="Sign in")).to_be_visible()
    page.goto(running.setup_link)
    expect(page.get_by_role("button", name="Create account")).to_have_count(0)
    context.close()
