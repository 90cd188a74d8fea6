"""The Hardware page in a browser: the recorded machine of an engine, wide and on a phone, and as it changes."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import BrowserContext, Page, expect

from tests import running as processes
from tests.browser.conftest import watch
from tests.hardware.recorded import RECORDINGS
from tests.running import Appliance, appliance


@pytest.fixture(scope="module")
def recording(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("recording") / "machine.json"
    path.write_text((RECORDINGS / "a100-mig.json").read_text())
    return path


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory, recording: Path) -> Iterator[Appliance]:
    """A console and an engine that find the machine of the recording."""
    plain = processes.environment
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(processes, "environment", lambda home: {**plain(home), "INGOT_HARDWARE": str(recording)})
        with appliance(tmp_path_factory.mktemp("hardware") / "home") as started:
            yield started


def test_slices_stand_under_their_gpu_and_nothing_overflows(signed_in: BrowserContext, running: Appliance) -> None:
    """At every width the page fits, the UUIDs can be copied, and it is said that this is a recording."""
    page = signed_in.new_page()
    problems = watch(page)
    for width in (1360, 820, 390):
        page.set_viewport_size({"width": width, "height": 900})
        page.goto(f"{running.console}/hardware")
        expect(page.get_by_text("Replayed from")).to_be_visible()
        slices = page.get_by_role("list", name="MIG instances of GPU 0").locator("> li")
        expect(slices).to_have_count(4)
        expect(slices.first).to_contain_text("MIG 3g.40gb")
        expect(slices.first).to_contain_text("python3")
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    expect(page.get_by_role("button", name="Copy the UUID of NVIDIA A100-SXM4-80GB MIG 2g.20gb")).to_be_visible()
    page.close()
    assert problems == []


def test_the_page_follows_the_machine_by_itself(page: Page, running: Appliance, recording: Path) -> None:
    """What was opened stays open while figures change under it."""
    page.goto(f"{running.console}/hardware")
    expect(page.get_by_text("5.7 GiB free of 39.2 GiB")).to_be_visible()
    details = page.locator("details", has_text="Environment variables")
    details.locator("summary").click()
    changed = json.loads(recording.read_text())
    part = changed["nvml"]["devices"][0]["slices"][0]
    part["MemoryInfo"]["free"] = 30 << 30
    recording.write_text(json.dumps(changed))
    expect(page.locator(".slices")).to_contain_text("30.0 GiB free of 39.2 GiB", timeout=15_000)
    expect(details).to_have_attribute("open", "")
