"""A person's first hour with the containers, in chromium, on a new volume. The tests build on each other, in the order
in which they stand."""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser, BrowserContext, Page, expect, sync_playwright

from tests.browser.conftest import ARGUMENTS, browser_path, watched_tab
from tests.container import egress
from tests.container.deployment import ENGINE, Deployment
from tests.container.missing import leave_out
from tests.running import ADMINISTRATOR, wait_for

NAME, PASSWORD = ADMINISTRATOR
STARTS_MS = 60_000
# Of the block that is set aside for documents: nobody has this address.
ELSEWHERE = "198.51.100.1"
SEND = f"import socket; socket.socket(socket.AF_INET, socket.SOCK_DGRAM).sendto(b'x', ('{ELSEWHERE}', 9))"


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """For this module only: Playwright's event loop would be in the way of tests that have one of their own."""
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=browser_path(), args=ARGUMENTS)
        yield browser
        browser.close()


@pytest.fixture(scope="module")
def visitor(browser: Browser, deployment: Deployment) -> Iterator[BrowserContext]:
    """One person's browser, which keeps its session from test to test."""
    context = browser.new_context(base_url=deployment.console)
    yield context
    context.close()


@pytest.fixture
def page(visitor: BrowserContext) -> Iterator[Page]:
    """A tab; the test fails if a page broke its own content policy or threw."""
    with watched_tab(visitor) as page:
        yield page


def _started(deployment: Deployment) -> str:
    started: str = deployment.container("engine")["State"]["StartedAt"]
    return started


def test_the_printed_link_makes_the_account(deployment, page):
    """It names the port that is published on this machine; the dashboard then says that the engine is ready, and how to
    call it from here."""
    (link,) = deployment.setup_links()
    assert link.startswith(f"{deployment.console}/setup?code=")
    page.goto(link)
    page.get_by_label("Name").fill(NAME)
    page.get_by_label("Password").fill(PASSWORD)
    page.get_by_role("button", name="Create account").click()
    expect(page.get_by_role("heading", name=re.compile("ingot-guide r1 is ready"))).to_be_visible()
    expect(page.locator("main")).to_contain_text(f"{deployment.engine}/v1")
    expect(page.locator("main")).not_to_contain_text("engine:8000")


def test_one_signs_out_and_in(page):
    page.goto("/")
    page.get_by_role("button", name=f"Sign out {NAME}").first.click()
    page.goto("/hardware")
    expect(page.get_by_role("heading", name="Sign in")).to_be_visible()
    page.get_by_label("Name").fill(NAME)
    page.get_by_label("Password").fill(PASSWORD)
    page.get_by_role("button", name="Sign in").click()
    expect(page).to_have_url(re.compile("/hardware$"))


def test_the_playground_answers(page):
    """The bundled model's own answer, token by token, and how fast it came."""
    page.goto("/playground")
    page.get_by_label("Message").fill("What does sealed mean?")
    page.keyboard.press("Enter")
    expect(page.locator("main")).to_contain_text("compiling is forbidden", timeout=30_000)
    expect(page.locator("main")).to_contain_text("tok/s")


def test_a_changed_profile_restarts_the_container(deployment, page):
    """Saved and activated on its page: a new launch of the new revision, in the same container, started anew."""
    before = deployment.container("engine")
    launch = deployment.state()["launch"]["id"]
    page.goto("/profiles/ingot-guide/edit")
    # The playground's answer may still run; then the console would ask first.
    expect(page.locator(".strip-state")).to_have_attribute("data-requests", "0", timeout=30_000)
    page.get_by_label("Max model len", exact=False).first.fill("1024")
    page.get_by_role("button", name="Save and activate").click()
    expect(page.get_by_role("heading", name=re.compile("ingot-guide r2 is ready"))).to_be_visible(timeout=STARTS_MS)
    state = deployment.state()
    assert state["launch"]["revision"] == "r2"
    assert state["launch"]["id"] != launch
    assert state["max_model_len"] == 1024
    after = deployment.container("engine")
    assert after["Id"] == before["Id"]
    assert after["State"]["StartedAt"] > before["State"]["StartedAt"]
    page.goto("/launches")
    expect(page.locator("main")).to_contain_text("r2")
    deployment.ask("ingot-guide")


def test_a_profile_that_cannot_start_leaves_the_engine_alone(deployment, page):
    """Preflight runs in the engine's container; the page names the folder that is not there, with a fix."""
    deployment.import_profile("schema: 1\nname: broken\nmodel: {path: nowhere}\n")
    before = _started(deployment)
    page.goto("/profiles/broken")
    page.get_by_role("button", name="Activate r1").first.click()
    expect(page.get_by_role("heading", name=re.compile("was not activated"))).to_be_visible()
    expect(page.locator(".finding").first).to_contain_text("nowhere")
    expect(page.locator(".fix").first).to_be_visible()
    assert _started(deployment) == before
    deployment.ask("ingot-guide")


def test_a_model_that_vanishes_fails_the_launch_with_its_cause_and_is_rolled_back(deployment, page):
    """The container restarts, the launch fails, the strip on every page says so; one click goes back."""
    fragile = deployment.models / "fragile"
    shutil.copytree(deployment.models / "small", fragile)
    deployment.import_profile("schema: 1\nname: fragile\nmodel: {path: fragile}\nmax-model-len: 128\n")
    page.goto("/profiles/fragile")
    page.get_by_role("button", name="Activate r1").first.click()
    expect(page.get_by_role("heading", name=re.compile("fragile r1 is ready"))).to_be_visible(timeout=STARTS_MS)
    before = _started(deployment)
    shutil.rmtree(fragile)
    assert page.request.post("/engine/restart").ok
    expect(page.locator(".strip")).to_contain_text("failed", timeout=STARTS_MS)
    expect(page.locator(".finding").first).to_contain_text("fragile")
    assert _started(deployment) > before
    page.locator(".strip").get_by_role("button", name=re.compile("Roll back")).click()
    expect(page.locator(".strip")).to_contain_text("ready", timeout=STARTS_MS)
    assert deployment.state()["launch"]["profile"] == "ingot-guide"


def test_a_model_from_the_models_folder_runs(deployment, page):
    """Another profile, another model, the same container."""
    deployment.import_profile("schema: 1\nname: small\nmodel: {path: small}\nmax-model-len: 128\n")
    page.goto("/profiles/small")
    page.get_by_role("button", name="Activate r1").first.click()
    expect(page.get_by_role("heading", name=re.compile("small r1 is ready"))).to_be_visible(timeout=STARTS_MS)
    deployment.ask("small")


def test_a_killed_engine_is_told_and_started_again(deployment, page):
    """`docker kill`: the open page says that, and how the process ended, without a reload; its button starts the active
    revision again."""
    page.goto("/")
    expect(page.locator(".now")).to_contain_text("is ready")
    page.evaluate("window.stayed = true")
    deployment.docker("kill", ENGINE)
    expect(page.locator(".now")).to_contain_text("SIGKILL", timeout=20_000)
    assert page.evaluate("window.stayed")
    page.locator(".strip").get_by_role("button", name="Start").click()
    expect(page.locator(".now")).to_contain_text("is ready", timeout=STARTS_MS)
    assert deployment.state()["launch"]["profile"] == "small"


def test_an_engine_stopped_from_the_page_has_not_failed(deployment, page):
    """Stopped is what was asked for; start brings it back."""
    page.goto("/")
    assert page.request.post("/engine/stop").ok
    expect(page.locator(".now")).to_contain_text("stopped", timeout=60_000)
    expect(page.locator(".now")).not_to_contain_text("failed")
    page.locator(".strip").get_by_role("button", name="Start").click()
    expect(page.locator(".now")).to_contain_text("is ready", timeout=STARTS_MS)


def test_the_console_serves_without_the_gate(deployment, page):
    """It says what does not answer and what to do, and still shows the engine, which it asks directly."""
    deployment.compose("stop", "gate")
    page.goto("/")

    def told() -> bool:
        page.reload()
        return "docker compose up -d gate" in page.inner_text("body")

    wait_for("the page tells", told, 60, 0.5)
    assert deployment.state()["state"] == "ready"
    deployment.compose("start", "gate")
    wait_for("it is fixed", lambda: not told(), 60, 0.5)


def test_nothing_of_all_this_left_the_machine(deployment):
    """Not one packet from any container to anywhere but its own network, from its creation to here; and one that a
    container is made to send is seen."""
    if deployment.egress is None:
        leave_out(str(egress.why_not()))
    assert deployment.egress.packets() == 0
    for service in ("engine", "console"):
        deployment.compose("exec", "-T", service, "python", "-c", SEND)
    wait_for("the packets are counted", lambda: deployment.egress.packets() >= 2, 10, 0.2)


def test_state_outlives_the_containers(deployment, page):
    """After `down` and `up` the same profile is active, the visitor is still signed in, and no link is printed."""
    deployment.compose("down", "--timeout", "15")
    deployment.up()
    assert deployment.state()["launch"]["profile"] == "small"
    assert deployment.setup_links() == []
    page.goto("/")
    expect(page.locator(".now")).to_contain_text("small r1")
