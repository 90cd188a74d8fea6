"""What surrounds every page: the strip that lives, the theme, the questions before something is cut off."""

from __future__ import annotations

from playwright.sync_api import Page, expect

from tests.running import Appliance


def test_the_strip_follows_the_engine_on_every_page(page: Page, running: Appliance):
    """Stop and Start from a page that is not the dashboard; the strip tells each state without a reload."""
    running.wait_ready()
    page.goto(f"{running.console}/hardware")
    strip = page.locator(".strip")
    expect(strip).to_contain_text("ready")
    other = page.context.new_page()
    other.goto(f"{running.console}/access")
    assert other.request.post(f"{running.console}/engine/stop").ok
    expect(strip).to_contain_text("stopped", timeout=15_000)
    strip.get_by_role("button", name="Start").click()
    expect(page.get_by_role("heading", name="Dashboard")).to_be_visible()
    expect(other.locator(".strip")).to_contain_text("ready", timeout=60_000)
    expect(page.locator(".now")).to_contain_text("is ready")
    other.close()


def test_a_lost_console_is_said_and_found_again(page: Page, running: Appliance):
    """While the network is away the strip says so; afterwards it goes on by itself."""
    page.goto(running.console)
    expect(page.locator("[data-live-lost]")).to_be_hidden()
    page.context.set_offline(True)
    page.evaluate("dispatchEvent(new Event('online'))")
    expect(page.locator("[data-live-lost]")).to_be_visible()
    page.context.set_offline(False)
    expect(page.locator("[data-live-lost]")).to_be_hidden(timeout=15_000)


def test_a_hidden_page_holds_no_stream(page: Page, running: Appliance):
    """Browsers allow a handful of connections: a page in the background gives its own back."""
    page.goto(running.console)
    page.wait_for_timeout(300)
    hide = "Object.defineProperty(document, 'hidden', {value: %s, configurable: true})"
    with page.expect_event("requestfailed", lambda request: "/live" in request.url):
        page.evaluate(hide % "true")
        page.evaluate("document.dispatchEvent(new Event('visibilitychange'))")
    with page.expect_request(lambda request: "/live" in request.url):
        page.evaluate(hide % "false")
        page.evaluate("document.dispatchEvent(new Event('visibilitychange'))")


def test_the_theme_is_kept(page: Page, running: Appliance):
    """Automatic, light, dark; the choice holds for the next page from its first paint on."""
    page.goto(running.console)
    switch = page.locator(".rail").get_by_role("button", name="Switch between light, dark and automatic")
    switch.click()
    switch.click()
    expect(page.locator("html")).to_have_attribute("data-theme", "dark")
    page.goto(f"{running.console}/access")
    expect(page.locator("html")).to_have_attribute("data-theme", "dark")
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") is not None
    page.locator(".rail").get_by_role("button", name="Switch between light, dark and automatic").click()


def test_what_destroys_asks_first(page: Page, running: Appliance):
    """The question names the key; Cancel and Escape leave it, the verb takes it away."""
    page.goto(f"{running.console}/access")
    page.get_by_label("New key").fill("laptop")
    page.get_by_role("button", name="Create key").click()
    expect(page.locator(".callout")).to_contain_text("ingot-")
    page.get_by_role("button", name="Revoke").click()
    expect(page.get_by_role("dialog")).to_contain_text("laptop")
    page.keyboard.press("Escape")
    expect(page.get_by_role("cell", name="laptop", exact=True)).to_be_visible()
    page.get_by_role("button", name="Revoke").click()
    page.get_by_role("dialog").get_by_role("button", name="Revoke").click()
    expect(page.get_by_role("cell", name="laptop", exact=True)).to_have_count(0)


def test_pages_work_without_scripts(browser, signed_in, running: Appliance):
    """Every page is there, every button a form: nothing needs a script to be read or pressed."""
    running.wait_ready()
    context = browser.new_context(java_script_enabled=False, storage_state=signed_in.storage_state())
    page = context.new_page()
    page.goto(running.console)
    expect(page.locator(".now")).to_contain_text("is ready")
    page.goto(f"{running.console}/backups")
    page.get_by_role("button", name="Create backup").click()
    expect(page.locator(".toast")).to_contain_text("ingot-backup-")
    context.close()
