"""The one question before requests are ended, the strip of a console that is away, and toasts that cover nothing."""

from __future__ import annotations

import pytest
from playwright.sync_api import Page, expect

from tests.browser.scripted_console import ScriptedConsole


@pytest.fixture
def tab(scripted_tab: Page, scripted: ScriptedConsole) -> Page:
    scripted_tab.goto(f"{scripted.url}/hardware")
    expect(scripted_tab.locator("[data-state=ready]")).to_be_visible()
    return scripted_tab


def press(page: Page, action: str) -> None:
    if not page.locator(f"[data-action={action}]").is_visible():
        page.get_by_label("More actions").click()
    page.locator(f"[data-action={action}]").click()


def test_the_question_counts_live_and_cancel_changes_nothing(tab: Page, scripted: ScriptedConsole):
    scripted.door.requests = 3
    expect(tab.locator("[data-requests='3']")).to_be_attached()
    press(tab, "restart")
    dialog = tab.locator("#end-requests")
    expect(dialog.locator("[data-end-count]")).to_contain_text("3")
    scripted.door.requests = 1
    expect(dialog.locator("[data-end-count]")).to_contain_text("1")
    dialog.locator(".actions button").click()
    expect(dialog).to_be_hidden()
    assert scripted.control.calls == []
    assert scripted.door.drains == []


def test_when_they_finish_drains_and_now_ends_the_wait(tab: Page, scripted: ScriptedConsole):
    scripted.door.requests = 2
    expect(tab.locator("[data-requests='2']")).to_be_attached()
    press(tab, "stop")
    tab.locator("#end-requests [value=when-finished]").click()
    expect(tab.locator("[data-state=draining]")).to_be_visible()
    expect(tab.locator("[data-then=stop]")).to_contain_text("2")
    assert scripted.control.calls == []
    press(tab, "finish-now")
    tab.wait_for_load_state()
    assert scripted.control.calls == ["stop"]


def test_nobody_is_asked_where_nothing_runs(tab: Page, scripted: ScriptedConsole):
    press(tab, "restart")
    tab.wait_for_url(f"{scripted.url}/")
    assert scripted.control.calls == ["restart"]


def test_the_strip_of_a_console_that_is_away_is_old_news(tab: Page, scripted: ScriptedConsole):
    """Greyed out, with its age, and without a button that would lead to the browser's own error page."""
    scripted.stop()
    expect(tab.locator("[data-live-lost]")).to_be_visible(timeout=15_000)
    expect(tab.locator("[data-action=restart]")).to_be_disabled()
    stood = tab.locator(".strip-state time").inner_text()
    age = tab.locator("[data-last-known]").inner_text()
    tab.wait_for_timeout(2500)
    assert tab.locator(".strip-state time").inner_text() == stood
    assert tab.locator("[data-last-known]").inner_text() != age
    tab.evaluate("document.querySelector('[data-action=restart]').form.requestSubmit()")
    expect(tab.locator(".toast-bad")).to_be_visible()
    assert tab.url.endswith("/hardware")
    scripted.start()
    expect(tab.locator("[data-live-lost]")).to_be_hidden(timeout=20_000)
    expect(tab.locator("[data-action=restart]")).to_be_enabled()


@pytest.mark.parametrize("width", [1280, 390])
def test_what_a_drain_waits_for_can_be_read_whole(tab: Page, scripted: ScriptedConsole, width: int):
    """How many requests, what then, and how long at most: none of it is cut off."""
    tab.set_viewport_size({"width": width, "height": 800})
    scripted.door.requests = 2
    tab.request.post(f"{scripted.url}/engine/restart", form={"when": "when-finished"})
    drain = tab.locator(".strip-drain")
    expect(drain.locator("time")).to_be_visible()
    tab.evaluate("document.querySelector('.strip-drain b').textContent = '1,234,567'")
    assert drain.evaluate("(part) => part.scrollWidth <= part.clientWidth")
    assert tab.evaluate("document.documentElement.scrollWidth <= innerWidth")


@pytest.mark.parametrize("width", [1280, 390])
def test_toasts_cover_no_button(tab: Page, scripted: ScriptedConsole, width: int):
    """Send and Stop of the playground, and the strip's own."""
    tab.set_viewport_size({"width": width, "height": 800})
    tab.goto(f"{scripted.url}/playground")
    tab.evaluate("ingot.toast('A note that is as long as notes are on most of the pages here.')")
    toast = tab.locator(".toast").bounding_box()
    assert toast is not None
    for selector in ("main form button:visible", ".strip button:visible"):
        for button in tab.locator(selector).all():
            box = button.bounding_box()
            assert box is not None
            apart = (
                box["x"] + box["width"] <= toast["x"]
                or toast["x"] + toast["width"] <= box["x"]
                or box["y"] + box["height"] <= toast["y"]
                or toast["y"] + toast["height"] <= box["y"]
            )
            assert apart, (selector, button.inner_text(), box, toast)


def test_a_restart_that_came_first_is_asked_for_on_a_page(tab: Page, scripted: ScriptedConsole):
    """Requests that began between the page's last news and the press of a button."""
    tab.evaluate("document.querySelector('[data-requests]').dataset.requests = 0")
    scripted.door.requests = 4
    tab.evaluate("document.querySelector('[data-action=restart]').form.submit()")
    tab.locator("main [name=when][value=now]").click()
    tab.wait_for_url(f"{scripted.url}/")
    assert scripted.control.calls == ["restart"]
    assert scripted.door.drains == [0]
