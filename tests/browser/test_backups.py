"""A backup in the browser: made, the state changed, restored, and carried to a new installation."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from playwright.sync_api import Browser, BrowserContext, Page, expect

from tests.browser.conftest import set_up, watch
from tests.browser.test_access import violations
from tests.running import ADMINISTRATOR, Appliance, appliance


@pytest.fixture(scope="module")
def backup(signed_in: BrowserContext, running: Appliance, tmp_path_factory) -> Path:
    """A backup of the appliance as it is at first, downloaded."""
    running.wait_ready()
    page = signed_in.new_page()
    page.goto(f"{running.console}/backups")
    page.get_by_role("button", name="Create backup").click()
    expect(page.locator(".toast")).to_contain_text("ingot-backup-")
    with page.expect_download() as downloading:
        page.get_by_role("link", name="Download ingot-backup-").click()
    path = tmp_path_factory.mktemp("stick") / downloading.value.suggested_filename
    downloading.value.save_as(path)
    page.close()
    return path


def test_back_to_how_it_was(page: Page, running: Appliance, backup: Path):
    """A key and another revision are made; the restore names what it replaces, takes them away, restarts the engine and
    leaves the browser signed in. The state before is in the list."""
    launch = running.wait_ready()["launch"]["id"]
    page.goto(f"{running.console}/access")
    page.get_by_label("New key").fill("laptop")
    page.get_by_role("button", name="Create key").click()
    page.goto(f"{running.console}/backups")
    page.get_by_role("link", name=f"Restore {backup.name}").click()
    keys = page.get_by_role("row").filter(has_text="API keys")
    expect(keys.get_by_role("cell")).to_have_text(["1", "0"])
    assert violations(page) == []
    page.locator("main form[data-ends-requests] button").click()
    expect(page.get_by_text(f"Restored {backup.name}").first).to_be_visible(timeout=20_000)
    expect(page.locator(".backup")).to_have_count(2)
    page.goto(f"{running.console}/access")
    expect(page.locator("tr[data-key]")).to_have_count(0)
    running.wait_until(lambda state: state["state"] == "ready" and state["launch"]["id"] != launch, "another launch")
    page.goto(f"{running.console}/launches")
    expect(page.get_by_role("link", name="2", exact=True)).to_be_visible()
    assert violations(page) == []


def test_a_check_and_a_delete(page: Page, running: Appliance, backup: Path):
    """What is checked is said to be whole; what is deleted is named first."""
    page.goto(f"{running.console}/backups")
    page.get_by_role("button", name=f"Check {backup.name}").click()
    expect(page.locator(".toast")).to_contain_text(backup.name)
    page.get_by_role("button", name=f"Delete {backup.name}").click()
    expect(page.get_by_role("dialog")).to_contain_text(backup.name)
    page.get_by_role("dialog").get_by_role("button", name="Delete").click()
    expect(page.get_by_text(f"Deleted {backup.name}.")).to_be_visible()


def test_what_is_no_backup_is_not_taken(page: Page, running: Appliance, backup: Path, tmp_path: Path):
    """The form stays and says why; so it does before it sends what the disk has no room for."""
    (tmp_path / "notes.txt").write_text("notes")
    page.goto(f"{running.console}/backups")
    page.get_by_label("Backup", exact=True).set_input_files(tmp_path / "notes.txt")
    page.get_by_role("button", name="Upload").click()
    alert = page.locator(".backup-upload").get_by_role("alert")
    expect(alert.locator("strong")).not_to_be_empty()
    expect(alert.locator("code")).to_have_text("ingot backup create")
    expect(page.locator(".backup-sent")).to_be_hidden()
    page.locator(".backup-upload").evaluate("form => form.dataset.room = '1000'")
    page.get_by_label("Backup", exact=True).set_input_files(backup)
    page.get_by_role("button", name="Upload").click()
    expect(alert).to_contain_text("0 MiB")


def test_into_a_new_installation(browser: Browser, backup: Path, tmp_path: Path):
    """Set up anew, upload, restore: the account made for it is gone, the old one's password holds, its launches are
    there, and the engine serves."""
    with appliance(tmp_path / "home") as running:
        context = browser.new_context()
        page = context.new_page()
        problems = watch(page)
        set_up(page, running)
        page.goto(f"{running.console}/backups")
        page.get_by_label("Backup", exact=True).set_input_files(backup)
        page.get_by_role("button", name="Upload").click()
        expect(page.get_by_text(f"Uploaded {backup.name}.")).to_be_visible()
        page.get_by_role("link", name=f"Restore {backup.name}").click()
        page.locator("main form[data-ends-requests] button").click()
        expect(page).to_have_url(re.compile("/sign-in"), timeout=20_000)
        name, password = ADMINISTRATOR
        page.get_by_label("Name").fill(name)
        page.get_by_label("Password").fill(password)
        page.get_by_role("button", name="Sign in").click()
        page.get_by_role("heading", name="Backups", level=1).wait_for()
        running.wait_ready()
        page.goto(f"{running.console}/launches")
        expect(page.get_by_role("link", name="2", exact=True)).to_be_visible()
        context.close()
    assert problems == []


def test_it_works_without_scripts(browser: Browser, signed_in: BrowserContext, running: Appliance, backup: Path):
    """Upload and restore are forms."""
    context = browser.new_context(java_script_enabled=False, storage_state=signed_in.storage_state())
    page = context.new_page()
    page.goto(f"{running.console}/backups")
    page.get_by_label("Backup", exact=True).set_input_files(backup)
    page.get_by_role("button", name="Upload").click()
    expect(page.locator(".toast")).to_contain_text("ingot-backup-")
    page.get_by_role("link", name=f"Restore {backup.name}").click()
    page.locator("main form[data-ends-requests] button").click()
    expect(page.locator("body")).to_contain_text(re.compile(f"Restor(ed|ing) {backup.name}"))  # a toast, or under way
    context.close()
