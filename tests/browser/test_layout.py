"""Every page by its geometry, on a phone, a tablet and a very wide screen, with the longest names that there can be."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser, FloatRect, Locator, Page

from appliance.protocol import State
from console.db.models import ActiveRevision
from console.db.sessions import Database
from console.profiles.store import ProfileStore
from tests.browser.conftest import watched_tab
from tests.browser.scripted_console import ScriptedConsole, scripted_console
from tests.console.launch_folders import failed_launch, ready_launch

LONG = "w" * 63
KEY = "k" * 64
PATH = "/".join(["models-of-the-department"] * 8)[:200]
FAILED = "20261120-110000-bbbb"
PHONE, TABLET, LAPTOP, WIDE = 390, 768, 1280, 2560

PAGES = (
    "/",
    "/profiles",
    f"/profiles/{LONG}",
    f"/profiles/{LONG}/edit",
    "/profiles/through-vllm",
    "/launches",
    f"/launches/{FAILED}",
    "/log",
    "/models",
    "/hardware",
    "/playground",
    "/benchmarks",
    "/access",
    "/backups",
)


async def fill(scripted: ScriptedConsole) -> None:
    database = Database(scripted.home.database)
    store = ProfileStore(database)
    saved = await store.create({"name": LONG, "model": {"path": PATH}}, author=LONG)
    async with database.session() as session:
        session.add(ActiveRevision(id=1, revision_id=saved.id))
    vllm = {"name": "through-vllm", "engine": "vllm", "device": "cpu", "model": {"path": "bundled"}}
    await store.create(vllm, author="a")
    await database.close()


@pytest.fixture(scope="module")
def full(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ScriptedConsole]:
    with scripted_console(tmp_path_factory.mktemp("layout") / "home") as made:
        filling = threading.Thread(target=lambda: asyncio.run(fill(made)))
        filling.start()
        filling.join()
        ready_launch(made.home, "20261120-100000-aaaa", profile=LONG, revision="r1")
        failed_launch(made.home, FAILED, profile=LONG, revision="r1")
        yield made


@pytest.fixture(scope="module")
def tab(browser: Browser, full: ScriptedConsole) -> Iterator[Page]:
    context = full.signed_in(browser)
    with watched_tab(context) as page:
        page.goto(f"{full.url}/access")
        page.locator("#field-name").fill(KEY)
        page.locator("form[action='/access/keys'] button").click()
        page.locator("tr[data-key]").wait_for()
        yield page
    context.close()


def at(tab: Page, full: ScriptedConsole, path: str, width: int) -> None:
    tab.set_viewport_size({"width": width, "height": 844})
    tab.goto(full.url + path)


def box(element: Locator) -> FloatRect:
    found = element.bounding_box()
    assert found is not None
    return found


def overlap(one: FloatRect, other: FloatRect) -> bool:
    return (
        one["x"] < other["x"] + other["width"] - 0.5
        and other["x"] < one["x"] + one["width"] - 0.5
        and one["y"] < other["y"] + other["height"] - 0.5
        and other["y"] < one["y"] + one["height"] - 0.5
    )


def none_overlap(elements: list[Locator]) -> None:
    boxes = [box(element) for element in elements]
    assert [pair for n, one in enumerate(boxes) for pair in enumerate(boxes[n + 1 :]) if overlap(one, pair[1])] == []


@pytest.mark.parametrize("width", [PHONE, TABLET])
def test_no_page_is_wider_than_the_screen(tab: Page, full: ScriptedConsole, width: int) -> None:
    """Neither as a whole nor a table in it: what cannot be seen is not looked for."""
    wide = []
    for path in PAGES:
        at(tab, full, path, width)
        beyond = tab.evaluate(
            """() => [document.documentElement, ...document.querySelectorAll(".table-scroll, main pre, .strip-live")]
                .filter((box) => box.scrollWidth > box.clientWidth && !box.closest(".finding"))
                .map((box) => `${box.className || box.tagName} ${box.scrollWidth} > ${box.clientWidth}`)"""
        )
        wide += [(path, each) for each in beyond]
    assert wide == []


@pytest.mark.parametrize("width", [PHONE, TABLET, LAPTOP])
def test_the_strips_parts_stand_beside_each_other(tab: Page, full: ScriptedConsole, width: int) -> None:
    at(tab, full, "/hardware", width)
    none_overlap(tab.locator(".strip-live > :visible:not(.sr-only)").all())
    action = box(tab.locator("[data-action=restart]"))
    assert overlap(action, {"x": 0, "y": box(tab.locator(".strip-state"))["y"], "width": width, "height": 1})


@pytest.mark.parametrize("width", [PHONE, TABLET])
def test_a_button_that_copies_is_beside_the_code(tab: Page, full: ScriptedConsole, width: int) -> None:
    for path, count in (("/", 2), ("/access", 1)):
        at(tab, full, path, width)
        blocks = tab.locator("main .code").all()
        assert len(blocks) == count
        for block in blocks:
            assert not overlap(box(block.locator("code")), box(block.locator("[data-copy]")))


@pytest.mark.parametrize("width", [PHONE, TABLET])
def test_a_key_can_be_revoked_without_a_search(tab: Page, full: ScriptedConsole, width: int) -> None:
    at(tab, full, "/access", width)
    button = box(tab.locator("tr[data-key] form button"))
    assert button["x"] >= 0
    assert button["x"] + button["width"] <= width


@pytest.mark.parametrize("width", [PHONE, TABLET, LAPTOP])
def test_each_phase_has_a_segment_and_a_name_of_its_own(tab: Page, full: ScriptedConsole, width: int) -> None:
    at(tab, full, f"/launches/{FAILED}", width)
    names = tab.locator(".phase-list li").all()
    none_overlap(names)
    segments = tab.locator(".phase-bar:not(.phase-good) .phase-fill").all()
    assert 0 < len(segments) <= len(names)
    none_overlap(segments)


def test_a_profile_for_vllm_has_no_table_without_rows(tab: Page, full: ScriptedConsole) -> None:
    at(tab, full, "/profiles/through-vllm", LAPTOP)
    assert tab.locator("#backends").is_visible()
    for table in tab.locator("#backends table").all():
        assert table.locator("tbody tr").count() > 0


def test_a_wide_screen_is_not_left_half_empty(tab: Page, full: ScriptedConsole) -> None:
    """What a page holds stands in the middle of its room; the dashboard's parts beside each other."""
    for path in ("/", "/profiles", "/access"):
        at(tab, full, path, WIDE)
        room, head = box(tab.locator("main")), box(tab.locator(".page-head"))
        left, right = head["x"] - room["x"], room["x"] + room["width"] - head["x"] - head["width"]
        assert abs(left - right) < 2
        assert head["width"] > room["width"] / 2
    at(tab, full, "/", WIDE)
    load, api = box(tab.locator(".load")), box(tab.locator("main > .columns"))
    assert api["x"] >= load["x"] + load["width"]


BROKEN_WORDS = """(cells) => cells.flatMap((cell) => {
  const walker = document.createTreeWalker(cell, NodeFilter.SHOW_TEXT), broken = [];
  while (walker.nextNode()) {
    for (const word of walker.currentNode.data.matchAll(/\\S+/g)) {
      const range = document.createRange();
      range.setStart(walker.currentNode, word.index);
      range.setEnd(walker.currentNode, word.index + word[0].length);
      if (new Set([...range.getClientRects()].map((box) => box.top)).size > 1) broken.push(word[0]);
    }
  }
  return broken;
})"""


def test_what_a_restore_replaces_can_be_read_on_a_phone(browser: Browser, scripted: ScriptedConsole) -> None:
    """No word that has room is broken."""
    context = scripted.signed_in(browser)
    with watched_tab(context) as tab:
        at(tab, scripted, "/backups", PHONE)
        tab.locator("form[action='/backups'] button").click()
        tab.locator("a[href$='/restore']").click()
        cells = tab.locator(".backup-compare :is(th, td)")
        cells.first.wait_for()
        assert cells.evaluate_all(BROKEN_WORDS) == []
    context.close()


def test_a_button_beside_a_stopped_engine_has_words(browser: Browser, scripted: ScriptedConsole) -> None:
    """Only the buttons of the head, which have icons, lose theirs on a phone."""
    scripted.door.state = State.STOPPED
    context = scripted.signed_in(browser)
    with watched_tab(context) as tab:
        at(tab, scripted, "/playground", PHONE)
        button = tab.locator("#chat-state .actions .button").first
        button.wait_for()
        assert button.evaluate("(button) => parseFloat(getComputedStyle(button).fontSize)") > 10
    context.close()
