"""A launch that fails, in a real browser: the cause comes to the open page, one click mends it, one click goes back."""

from __future__ import annotations

import io
import os
import re
import signal
import zipfile
from pathlib import Path

import psutil
import pytest
import yaml
from playwright.sync_api import Browser, Page, expect

from appliance.home import Home
from appliance.profile.active import ActiveProfile, write_active
from tests.browser.conftest import watch
from tests.console.launch_kinds import gallery
from tests.running import Appliance

AXE = next((Path(__file__).parent / "vendor").glob("axe-core-*.min.js")).read_text()

TOO_LONG = 1_000_000
"""A context that no model has."""


@pytest.fixture
def wide_context(running: Appliance):
    """The bundled profile with a context that its model does not have, saved as a new revision and made the active one
    past preflight, which refuses it."""
    document = yaml.safe_load(running.cli("profile", "export", "ingot-guide")) | {"max-model-len": TOO_LONG}
    path = running.home.parent / "wide.yaml"
    path.write_text(yaml.safe_dump(document))
    running.cli("profile", "import", "--yes", str(path))
    write_active(Home.at(running.home), ActiveProfile(launch=None, revision="r2", document=document))


def core(running: Appliance) -> psutil.Process:
    """The engine's torch process."""
    return next(
        process
        for process in psutil.process_iter(["cmdline", "environ"])
        if "appliance.engine" in " ".join(process.info["cmdline"] or [])
        and (process.info["environ"] or {}).get("INGOT_HOME") == str(running.home)
    )


def test_a_failed_launch_is_mended_by_one_click_and_followed_until_it_is_ready(
    page: Page, running: Appliance, wide_context
):
    """The fix is shown as a change, saved as a new revision, checked, started; the page goes on to the new launch."""
    running.wait_ready()
    assert page.request.post(f"{running.console}/engine/restart").ok
    failed = running.wait_until(lambda now: now["state"] == "failed", "the launch failed")["launch"]["id"]
    page.goto(f"{running.console}/launches/{failed}")
    expect(page.locator(".launch-sentence")).to_contain_text("Refused in preflight")
    card = page.locator(".finding-error").first
    expect(card.locator(".fix-diff del")).to_contain_text(str(TOO_LONG))
    card.get_by_role("button", name="Apply and restart").click()
    expect(page).to_have_url(re.compile(rf"/launches/(?!{failed})"))
    expect(page.locator(".launch-what .state-ready")).to_be_visible(timeout=60_000)
    expect(page.locator(".launch-chain")).to_contain_text("Started with a fix for")
    state = running.wait_ready()
    assert state["launch"]["revision"] == "r3"
    page.get_by_role("link", name=re.compile("Launch")).first.click()
    page.goto(f"{running.console}/launches/{failed}")
    expect(page.locator(".launch-chain")).to_contain_text("ingot-guide r3")


def test_a_core_that_is_killed_is_told_on_the_open_page_and_rolled_back_from_there(page: Page, running: Appliance):
    """Without a reload: since when, by what, and the way back, which is then followed until it is ready."""
    launch = running.wait_ready()["launch"]
    page.goto(f"{running.console}/launches/{launch['id']}")
    expect(page.locator(".launch-what .state-ready")).to_be_visible()
    page.evaluate("window.stayed = true")
    os.kill(core(running).pid, signal.SIGKILL)
    expect(page.locator(".launch-sentence")).to_contain_text("Failed while serving", timeout=5_000)
    expect(page.locator(".launch-since")).to_contain_text("SIGKILL")
    expect(page.locator(".finding-error").first).to_be_visible()
    assert page.evaluate("window.stayed")
    page.goto(running.console)
    expect(page.locator(".now")).to_contain_text("failed")
    expect(page.locator(".now").get_by_role("button", name=re.compile("Roll back to ingot-guide r1"))).to_be_visible()
    page.goto(f"{running.console}/launches/{launch['id']}")
    page.locator(".launch-back").get_by_role("button", name="Roll back to ingot-guide r1").click()
    expect(page).to_have_url(re.compile(rf"/launches/(?!{launch['id']})"))
    expect(page.locator(".launch-what .state-ready")).to_be_visible(timeout=60_000)
    expect(page.locator(".launch-chain")).to_contain_text("Rolled back")
    assert running.wait_ready()["launch"]["revision"] == "r1"


def test_a_line_of_evidence_leads_to_its_place_in_a_large_log(page: Page, running: Appliance):
    """The line stands out, with what is around it, though the log has half a million lines."""
    launch = running.wait_ready()["launch"]["id"]
    with (running.home / "launches" / launch / "engine.log").open("a") as file:
        before = sum(1 for _ in (running.home / "launches" / launch / "engine.log").open())
        file.writelines(f"INFO step {number} of very many\n" for number in range(500_000))
    wanted = before + 250_000
    page.goto(f"{running.console}/log?launch={launch}&line={wanted}#L{wanted}")
    asked = page.locator(".log-asked")
    expect(asked).to_contain_text("step 249999 of very many")
    expect(asked).to_be_in_viewport()
    expect(page.locator("#log-view")).to_contain_text("step 249995 of very many")
    page.locator("#log-query").fill("step 499998 of")
    expect(page.locator("#log-count")).to_contain_text("1 of 1", timeout=10_000)


def test_the_export_is_one_file(page: Page, running: Appliance):
    launch = running.wait_ready()["launch"]["id"]
    page.goto(f"{running.console}/launches/{launch}")
    with page.expect_download() as downloading:
        page.get_by_role("link", name="Export").click()
    names = zipfile.ZipFile(io.BytesIO(downloading.value.path().read_bytes())).namelist()
    assert {"README.txt", "engine.log", "launch.json", "profile.yaml", "hardware.json"} <= set(names)


READ_WITHOUT_SCROLLING = "[...document.querySelectorAll('.evidence')].every((e) => e.scrollWidth <= e.clientWidth)"


@pytest.mark.parametrize(("scheme", "width"), [("light", 1280), ("dark", 360)])
def test_the_page_of_every_kind_of_end_is_for_everyone(browser: Browser, running: Appliance, signed_in, scheme, width):
    """No violation that axe-core finds, nothing wider than the screen, nothing that the page's own policy stops."""
    home = Home.at(running.home)
    ids = gallery(home, day=f"2020010{1 + (scheme == 'dark')}")
    context = browser.new_context(
        color_scheme=scheme,
        viewport={"width": width, "height": 844},
        storage_state=signed_in.storage_state(),
    )
    page = context.new_page()
    problems = watch(page)
    for kind, launch in ids.items():
        page.goto(f"{running.console}/launches/{launch}")
        expect(page.locator(".launch-sentence")).to_be_visible()
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth"), kind
        assert page.evaluate(READ_WITHOUT_SCROLLING) or width == 1280, kind
        page.evaluate(AXE)
        found = page.evaluate("async () => (await axe.run()).violations")
        assert [(violation["id"], violation["nodes"][0]["html"]) for violation in found] == [], kind
    context.close()
    assert problems == []
