"""The live log in a real browser: neither a lost network nor a pause loses or repeats a line."""

from __future__ import annotations

import re

import pytest
from playwright.sync_api import BrowserContext, Page, expect

from tests.browser.wire import Wire
from tests.running import Appliance


@pytest.fixture
def log(running: Appliance):
    """Appends lines to the running launch's log, as its supervisor would."""
    state = running.wait_ready()
    path = running.home / "launches" / state["launch"]["id"] / "engine.log"

    def write(*lines: str) -> None:
        with path.open("a") as file:
            file.writelines(f"{line}\n" for line in lines)

    return write


def marks(page: Page, word: str) -> list[int]:
    """The numbers n of the lines "`word` n" that the page shows, in order."""
    return [int(found[1]) for found in re.finditer(rf"{word} (\d+)\b", page.locator("#log-view").inner_text())]


def toolbar(page: Page) -> list[object]:
    """Where each tool stands."""
    return [tool.bounding_box() for tool in page.locator(".log-bar select, .log-tools button").all()]


def test_lines_written_while_the_network_is_away_appear_once_it_is_back(
    page: Page, signed_in: BrowserContext, running: Appliance, log
):
    """The browser reaches the console through a wire that is cut, with every connection on it, and mended again."""
    with Wire(running.console) as wire:
        page.goto(f"{wire.url}/log")
        log(*(f"mark {n}" for n in range(5)))
        expect(page.locator("#log-view")).to_contain_text("mark 4")
        wire.cut()
        log(*(f"mark {n}" for n in range(5, 12)))
        expect(page.locator(".log-lost")).to_be_visible(timeout=15_000)
        wire.mend()
        log("mark 12")
        expect(page.locator("#log-view")).to_contain_text("mark 12", timeout=20_000)
        assert marks(page, "mark") == list(range(13))


def test_pause_keeps_collecting_and_says_how_much(page: Page, running: Appliance, log):
    page.goto(f"{running.console}/log")
    log("early 0")
    expect(page.locator("#log-view")).to_contain_text("early 0")
    before = toolbar(page)
    page.locator("#log-pause").click()
    log(*(f"late {n}" for n in range(23)))
    expect(page.locator("#log-end")).to_contain_text("23")
    assert marks(page, "late") == []
    assert toolbar(page) == before
    page.locator("#log-end").click()
    expect(page.locator("#log-view")).to_contain_text("late 22")
    assert marks(page, "late") == list(range(23))
    assert toolbar(page) == before


def test_colours_are_classes_and_a_hostile_line_is_only_text(page: Page, running: Appliance, log):
    page.goto(f"{running.console}/log")
    log("\x1b[31mred words\x1b[0m", "<img src=x onerror=alert(1)><script>alert(2)</script> hostile")
    expect(page.locator("#log-view")).to_contain_text("hostile")
    assert page.locator("#log-view img, #log-view script").count() == 0
    red = page.locator("#log-view span", has_text="red words").last
    assert red.get_attribute("class")
    assert red.get_attribute("style") is None


def test_search_counts_and_steps_through_matches(page: Page, running: Appliance, log):
    page.goto(f"{running.console}/log")
    log(*(f"needle {n}" if n % 50 == 0 else f"hay {n}" for n in range(500)))
    expect(page.locator("#log-view")).to_contain_text("hay 499")
    page.get_by_role("searchbox").or_(page.locator("#log-query")).first.fill("needle")
    expect(page.locator("#log-count")).to_contain_text("10")


def test_a_match_beyond_the_edge_is_scrolled_to(page: Page, running: Appliance, log):
    """To the right, and back to the left for a match at a line's beginning."""
    page.goto(f"{running.console}/log")
    log("leftmost " + "x" * 3000 + " rightmost", "the end")
    expect(page.locator("#log-view")).to_contain_text("the end")
    for word in ("rightmost", "leftmost"):
        page.locator("#log-query").fill(word)
        expect(page.locator("#log-view mark", has_text=word)).to_be_in_viewport(ratio=1)


def test_ten_thousand_lines_scroll_and_only_a_window_of_them_is_in_the_page(page: Page, running: Appliance, log):
    page.goto(f"{running.console}/log")
    log(*(f"line of many {n}" for n in range(10_000)))
    expect(page.locator("#log-view")).to_contain_text("line of many 9999", timeout=20_000)
    assert page.locator("#log-view .log-lines > *").count() < 2000


def test_the_list_of_launches_shows_the_one_that_is_read(page: Page, running: Appliance, log):
    """After it was renewed, too, which it is as soon as the page hears of the engine."""
    page.add_init_script("addEventListener('htmx:oobAfterSwap', () => document.documentElement.dataset.renewed = '')")
    page.goto(f"{running.console}/log")
    page.locator("html[data-renewed]").wait_for()
    expect(page.locator("#log-launch")).to_have_value("current")
