"""A real console, engine and headless browser."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from playwright.sync_api import Browser, BrowserContext, Page, sync_playwright

from tests.browser.scripted_console import ScriptedConsole, scripted_console
from tests.running import ADMINISTRATOR, Appliance, appliance

HERE = Path(__file__).parent
BROWSERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
# Nothing of the browser's own may look for a network: on a sealed machine those look-ups only cost time.
ARGUMENTS = ["--no-sandbox", "--disable-background-networking", "--disable-component-update", "--disable-sync"]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Browser tests come last: Playwright keeps an event loop in this thread, and async tests need one of their own."""
    items.sort(key=lambda item: item.path.is_relative_to(HERE))


def browser_path() -> str:
    found = next((path for name in BROWSERS if (path := shutil.which(name))), None)
    assert found, "no chromium: tests/browser/install.sh installs it"
    return found


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=browser_path(), args=ARGUMENTS)
        yield browser
        browser.close()


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Appliance]:
    """`ingot up` on a fresh state folder; the tests of a module share it, in the order in which they stand."""
    with appliance(tmp_path_factory.mktemp("browser") / "home") as started:
        yield started


@pytest.fixture
def scripted(tmp_path: Path) -> Iterator[ScriptedConsole]:
    """A console whose engine says what the test tells it to."""
    with scripted_console(tmp_path / "home") as made:
        yield made


@pytest.fixture
def scripted_tab(browser: Browser, scripted: ScriptedConsole) -> Iterator[Page]:
    """A watched tab of its administrator, on no page yet."""
    context = scripted.signed_in(browser)
    with watched_tab(context) as page:
        yield page
    context.close()


@pytest.fixture(scope="module")
def signed_in(browser: Browser, running: Appliance) -> Iterator[BrowserContext]:
    """A browser profile in which the administrator, made with the set-up link, is signed in."""
    context = browser.new_context()
    page = context.new_page()
    set_up(page, running)
    page.close()
    yield context
    context.close()


@pytest.fixture
def page(signed_in: BrowserContext) -> Iterator[Page]:
    """A tab of the administrator; the test fails if a page broke its own content policy or threw."""
    with watched_tab(signed_in) as page:
        yield page


@contextmanager
def watched_tab(context: BrowserContext) -> Iterator[Page]:
    """A new tab, in which nothing may go wrong by itself."""
    page = context.new_page()
    problems = watch(page)
    yield page
    page.close()
    assert problems == []


def watch(page: Page) -> list[str]:
    """What goes wrong in the page by itself: uncaught errors, and what the content security policy had to stop."""
    problems: list[str] = []
    page.on("pageerror", lambda error: problems.append(str(error)))
    page.on(
        "console",
        lambda message: problems.append(message.text) if "Content Security Policy" in message.text else None,
    )
    return problems


def set_up(page: Page, running: Appliance) -> None:
    """First visit: open the link from the terminal and make the administrator."""
    name, password = ADMINISTRATOR
    page.goto(running.setup_link)
    page.get_by_label("Name").fill(name)
    page.get_by_label("Password").fill(password)
    page.get_by_role("button", name="Create account").click()
    page.get_by_role("heading", name="Dashboard").wait_for()
