"""Importing from a stick in a browser: plugged in, its key looked at and trusted, imported while the page watches,
called off, and gone on with after the console was killed."""

from __future__ import annotations

import os
import shutil
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Literal

import pytest
from playwright.sync_api import BrowserContext, Page, expect

from appliance.bundle.pack import Order, create
from appliance.bundle.signature import Key
from tests.running import Appliance, appliance
from tests.tiny import write_checkpoint

AXE = next((Path(__file__).parent / "vendor").glob("axe-core-*.min.js"))
LARGE = 12 << 20
"""Bytes: four seconds of a slow stick, in which an import can be watched."""
SLOW = (sys.executable, "-m", "tests.browser.slow_sticks")


@pytest.fixture(scope="module")
def media(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    folder = tmp_path_factory.mktemp("media")
    yield folder
    shutil.rmtree(folder)


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Two models in one bundle: a small one, and one of many zeros."""
    folder = tmp_path_factory.mktemp("made")
    write_checkpoint(folder / "Small")
    write_checkpoint(folder / "Large")
    (folder / "Large" / "extra.bin").touch()
    os.truncate(folder / "Large" / "extra.bin", LARGE)
    create(Order(out=folder / "two.ingot", key=Key.generate(), models=[folder / "Small", folder / "Large"]))
    yield folder / "two.ingot"
    shutil.rmtree(folder)


@pytest.fixture(scope="module")
def variables(media: Path) -> dict[str, str]:
    return {"INGOT_MEDIA": str(media), "INGOT_ENGINE_CONTROL": "none"}


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory, variables: dict[str, str]) -> Iterator[Appliance]:
    home = tmp_path_factory.mktemp("stick") / "home"
    with appliance(home, variables, SLOW) as started:
        yield started
    shutil.rmtree(home, ignore_errors=True)


def test_a_stick_appears_while_the_page_is_open(page: Page, running: Appliance, media: Path, bundle: Path) -> None:
    """Nobody has to load the page again; what is broken stands below what can be used, and nothing overflows."""
    page.goto(f"{running.console}/models")
    expect(page.locator("#media .empty")).to_be_visible()
    stick = media / "STICK"
    stick.mkdir()
    (stick / "broken.ingot").write_text("no bundle")
    shutil.copy(bundle, stick / "two.ingot")
    expect(page.get_by_role("heading", name="two.ingot")).to_be_visible(timeout=15_000)
    expect(page.locator(".bundle").last).to_contain_text("broken.ingot")
    for width in (1360, 820, 390):
        page.set_viewport_size({"width": width, "height": 900})
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("path", ["/models", "/models/-/import?source=STICK/two.ingot"])
def test_axe_finds_no_violation(page: Page, running: Appliance, path: str, scheme: Literal["light", "dark"]) -> None:
    page.emulate_media(color_scheme=scheme)
    page.goto(f"{running.console}{path}")
    expect(page.get_by_role("heading", name="two.ingot")).to_be_visible()
    page.evaluate(AXE.read_text())
    found = page.evaluate("async () => (await axe.run()).violations")
    assert [(rule["id"], [node["html"] for node in rule["nodes"]]) for rule in found] == []


def test_a_key_is_trusted_after_it_was_compared(page: Page, running: Appliance) -> None:
    """The way leads over the whole key, a mark that it was compared, and a question."""
    page.goto(f"{running.console}/models")
    page.get_by_role("link", name="Check the key").first.click()
    expect(page.locator(".key-text")).to_be_visible()
    expect(page.get_by_role("button", name="Import")).to_have_count(0)
    page.locator(".key").get_by_role("checkbox").check()
    page.get_by_role("button", name="Trust this key").click()
    page.locator("#confirm [data-confirm-yes]").click()
    expect(page.locator("[data-signature=trusted]")).to_be_visible()


def test_an_import_is_watched_and_called_off(
    page: Page, signed_in: BrowserContext, running: Appliance, media: Path
) -> None:
    """The bar moves by itself, on every page that is open; called off, nothing is left."""
    page.goto(f"{running.console}/models")
    page.get_by_role("button", name="Import Large").click()
    bar = page.get_by_role("progressbar", name="Progress of Large")
    expect(bar).to_be_visible()
    other = signed_in.new_page()
    other.goto(f"{running.console}/models")
    expect(other.get_by_role("progressbar", name="Progress of Large")).to_be_visible()
    other.close()
    page.get_by_role("button", name="Cancel").first.click()
    page.locator("#confirm [data-confirm-yes]").click()
    expect(page.locator("[data-import=cancelled]")).to_be_visible(timeout=15_000)
    assert os.listdir(running.home / "models") == []


def test_a_model_that_was_imported_can_be_used(page: Page, running: Appliance) -> None:
    """It appears in the list without loading the page again, and leads to a profile."""
    page.goto(f"{running.console}/models")
    page.get_by_role("button", name="Import Small").click()
    expect(page.locator("[data-import=done]")).to_be_visible(timeout=15_000)
    expect(page.locator(".models").get_by_role("heading", name="Small")).to_be_visible(timeout=15_000)
    expect(page.locator("[data-standing=here]")).to_be_visible(timeout=15_000)
    page.locator(".models").get_by_role("link", name="Create profile for Small").click()
    expect(page).to_have_url(f"{running.console}/profiles/-/new?model=Small")


def test_a_console_that_is_killed(page: Page, running: Appliance, variables: dict[str, str]) -> None:
    """Nothing that looks like a model stays; the next console says so, and goes on with one click."""
    page.goto(f"{running.console}/models")
    page.get_by_role("button", name="Import Large").click()
    expect(page.get_by_role("progressbar")).to_be_visible()
    running.process.send_signal(signal.SIGKILL)
    running.process.wait()
    assert sorted(name for name in os.listdir(running.home / "models") if not name.startswith(".")) == ["Small"]
    with appliance(running.home, variables, SLOW) as again:
        page.goto(f"{again.console}/models")
        expect(page.locator("[data-import=interrupted]")).to_be_visible()
        page.get_by_role("button", name="Resume").click()
        expect(page.locator(".models").get_by_role("heading", name="Large")).to_be_visible(timeout=60_000)
        assert sorted(os.listdir(again.home / "models")) == ["Large", "Small"]
