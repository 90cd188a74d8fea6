"""Profiles in a real browser: edit one, see the engine restart; activate a broken one, read why, roll back."""

from __future__ import annotations

import re
import shutil

import yaml
from playwright.sync_api import Page, expect

from tests.running import Appliance
from tests.tiny import write_checkpoint


def test_a_changed_setting_is_saved_activated_and_in_force(page: Page, running: Appliance):
    """Edit the bundled profile, save and activate: a new revision runs in a new launch, and clients feel the change."""
    before = running.wait_ready()
    page.goto(f"{running.console}/profiles/ingot-guide/edit")
    page.get_by_label("Max model len", exact=False).first.fill("1024")
    page.get_by_role("button", name="Save and activate").click()
    expect(page.get_by_role("heading", name="Dashboard")).to_be_visible()
    state = running.wait_until(
        lambda now: now["state"] == "ready" and now["launch"]["id"] != before["launch"]["id"], "the new launch"
    )
    assert state["launch"]["revision"] == "r2"
    assert state["max_model_len"] == 1024
    expect(page.locator(".strip")).to_contain_text("ready")
    expect(page.locator(".strip")).to_contain_text("r2")


def test_one_may_ask_which_backends_another_gpu_would_give(page: Page, running: Appliance):
    """Without reloading the page; and the address then asks the same."""
    page.goto(f"{running.console}/profiles/ingot-guide")
    section = page.locator("#backends")
    expect(section).to_contain_text("on the CPU")
    page.evaluate("window.stayed = true")
    section.locator("#ask-gpu").select_option("H100 80GB")
    expect(section).to_contain_text("on H100 80GB (sm_90, 80.0 GiB)")
    expect(section.get_by_role("row", name="RMS norm")).to_contain_text("triton")
    assert page.evaluate("window.stayed")
    page.reload()
    expect(section).to_contain_text("on H100 80GB")
    page.set_viewport_size({"width": 390, "height": 844})
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")


def test_what_is_typed_is_checked_as_it_is_typed_and_survives_a_refused_save(page: Page, running: Appliance):
    page.goto(f"{running.console}/profiles/ingot-guide/edit")
    field = page.get_by_label("Max model len", exact=False).first
    field.fill("-5")
    expect(field).to_have_attribute("aria-invalid", "true")
    expect(page.locator("#check [data-verdict=invalid]")).to_be_visible()
    page.get_by_role("button", name="Save", exact=True).first.click()
    expect(page.locator(".callout-bad")).to_be_visible()
    expect(page.get_by_label("Max model len", exact=False).first).to_have_value("-5")


def test_a_broken_profile_is_refused_with_cause_and_fix_while_the_engine_goes_on(page: Page, running: Appliance):
    path = running.home.parent / "broken.yaml"
    path.write_text(yaml.safe_dump({"name": "broken", "model": {"path": "not-there"}}))
    running.cli("profile", "import", "--yes", str(path))
    before = running.state()["launch"]["id"]
    page.goto(f"{running.console}/profiles/broken")
    page.get_by_role("button", name="Activate r1").first.click()
    expect(page.get_by_role("heading", name=re.compile("broken r1"))).to_be_visible()
    expect(page.locator(".finding").first).to_contain_text("not-there")
    expect(page.locator(".fix").first).to_be_visible()
    expect(page.get_by_role("button", name="Activate anyway")).to_have_count(0)
    now = running.state()
    assert (now["state"], now["launch"]["id"]) == ("ready", before)
    assert now["attempt"]["state"] == "failed"
    assert now["attempt"]["findings"][0]["fix"]


def test_a_model_that_vanishes_fails_the_launch_at_once_and_is_rolled_back_by_one_click(page: Page, running: Appliance):
    model = running.home / "models" / "fragile"
    write_checkpoint(model)
    path = running.home.parent / "fragile.yaml"
    path.write_text(yaml.safe_dump({"name": "fragile", "model": {"path": "fragile"}, "max-model-len": 64}))
    running.cli("profile", "import", "--yes", str(path))
    page.goto(f"{running.console}/profiles/fragile")
    page.get_by_role("button", name="Activate r1").first.click()
    running.wait_until(
        lambda now: now["state"] == "ready" and now["launch"]["profile"] == "fragile", "the fragile profile is ready"
    )
    shutil.rmtree(model)
    assert page.request.post(f"{running.console}/engine/restart").ok
    state = running.wait_until(lambda now: now["state"] == "failed", "the launch failed")
    assert state["launch"]["findings"][0]["fix"]
    page.goto(f"{running.console}/")
    expect(page.locator(".finding").first).to_contain_text("fragile")
    expect(page.locator(".strip")).to_contain_text("failed")
    page.locator(".strip").get_by_role("button", name=re.compile("Roll back")).click()
    state = running.wait_until(lambda now: now["state"] == "ready", "the last good revision is back")
    assert state["launch"]["profile"] == "ingot-guide"
    expect(page.locator(".strip")).to_contain_text("ready")
