"""From the link in the terminal to an answer worth reading: the first minutes of a new user."""

from __future__ import annotations

import re

from playwright.sync_api import Browser, expect

from tests.browser.conftest import set_up, watch
from tests.running import Appliance


def test_the_set_up_link_leads_to_the_first_chat(browser: Browser, running: Appliance):
    """Set up, wait for ready on the dashboard, open the playground, press a suggested question, read the answer."""
    context = browser.new_context()
    page = context.new_page()
    problems = watch(page)
    set_up(page, running)
    running.wait_ready()
    expect(page.get_by_role("heading", name=re.compile("ingot-guide r1 is ready"))).to_be_visible()
    page.get_by_role("link", name="Try the playground").click()
    page.get_by_role("button", name="How do I import a model?").click()
    expect(page.locator(".chat-turns")).to_contain_text("models folder", timeout=30_000)
    expect(page.locator(".chat-turns")).to_contain_text("tok/s")

    page.get_by_label("Message").fill("What does sealed mean?")
    page.keyboard.press("Enter")
    expect(page.locator(".chat-turns")).to_contain_text("compiling is forbidden", timeout=30_000)
    assert problems == []
    context.close()
