"""`make bench-start`: how soon the front door answers, the first token comes, a broken profile is reported, a good one
is ready, a request has another model answer.

Whole processes on this machine's CPU, the bundled model, a real browser pressing Activate; the median of five.
"""

from __future__ import annotations

import sys
import time
from functools import partial
from pathlib import Path
from typing import Any

import yaml
from playwright.sync_api import sync_playwright

from appliance.home import Home
from appliance.profile.active import ActiveProfile, write_active
from appliance.profile.startable import Written, write_startable
from tests.bench.table import Figure, conclude
from tests.browser.conftest import ARGUMENTS, browser_path, set_up
from tests.running import Appliance, answers, appliance, engine, fetch, temporary_home, wait_for

RUNS = 5
BETWEEN_SWAPS_S = 4.0
BUNDLED = yaml.safe_load((Path(__file__).parents[2] / "appliance/selftest/profile.yaml").read_text())


def time_starts() -> tuple[list[float], list[float]]:
    """Process start to the first HTTP answer, and to the first generated token over HTTP."""
    to_answer, to_token = [], []
    body = {"model": BUNDLED["name"], "prompt": [5, 6, 7], "max_tokens": 1, "temperature": 0}
    for _ in range(RUNS):
        with temporary_home() as folder:
            home = Home.at(folder).create()
            write_active(home, ActiveProfile(launch=None, revision="r1", document=BUNDLED))
            started = time.perf_counter()
            with engine(folder) as (_process, url):
                wait_for("the front door answers", partial(answers, f"{url}/health"), every_s=0.005)
                to_answer.append(time.perf_counter() - started)
                wait_for("the first token", partial(generates, url, body))
                to_token.append(time.perf_counter() - started)
    return to_answer, to_token


def time_swaps() -> list[float]:
    """A request that names the model that does not run, to its answer of one token: the bundled model under two
    profiles, each asked for after a few seconds of the other."""
    to_answer = []
    with temporary_home() as folder:
        home = Home.at(folder).create()
        names = (BUNDLED["name"], "other")
        startable = {"start": True, "min-runtime": 0}
        profiles = [
            Written(revision="r1", saved=0, document={**BUNDLED, "name": name, "on-request": startable})
            for name in names
        ]
        write_startable(home, profiles)
        write_active(home, ActiveProfile(launch=None, revision="r1", document=profiles[0].document))
        with engine(folder) as (_process, url):
            wait_for("the first model is ready", lambda: fetch(f"{url}/health")[0] == 200)
            for run in range(RUNS):
                body = {"model": names[(run + 1) % 2], "prompt": [5, 6, 7], "max_tokens": 1, "temperature": 0}
                assert generates(url, {**body, "model": names[run % 2]})
                time.sleep(BETWEEN_SWAPS_S)
                started = time.perf_counter()
                assert generates(url, body)
                to_answer.append(time.perf_counter() - started)
    return to_answer


def generates(url: str, body: dict[str, Any]) -> bool:
    return fetch(f"{url}/v1/completions", body)[0] == 200


def serves(name: str, state: dict[str, Any]) -> bool:
    return state["state"] == "ready" and state["models"] == [name]


def import_profile(running: Appliance, **changes: object) -> None:
    path = running.home.parent / f"{changes['name']}.yaml"
    path.write_text(yaml.safe_dump({**BUNDLED, **changes}))
    running.cli("profile", "import", "--yes", str(path))


def time_activations() -> tuple[list[float], list[float]]:
    """Pressing Activate to the finding with its fix on the page and in the state; and to the next `ready`."""
    to_finding, to_ready = [], []
    with temporary_home() as folder, appliance(folder) as running, sync_playwright() as playwright:
        running.wait_ready()
        import_profile(running, name="broken", model={"path": "not-there"})
        import_profile(running, name="other", **{"max-model-len": 1024})
        page = playwright.chromium.launch(executable_path=browser_path(), args=ARGUMENTS).new_page()
        set_up(page, running)
        for run in range(RUNS):
            page.goto(f"{running.console}/profiles/broken")
            button = page.get_by_role("button", name="Activate").first
            last = (running.state().get("attempt") or {}).get("id")

            def told(last: str | None = last) -> bool:
                attempt = running.state().get("attempt") or {}
                return attempt.get("id") != last and any(f.get("fix") for f in attempt.get("findings", ()))

            started = time.perf_counter()
            button.click()
            page.get_by_text("Fix.", exact=False).first.wait_for()
            wait_for("the attempt in /appliance/state", told)
            to_finding.append(time.perf_counter() - started)
            assert running.state()["state"] == "ready", "the running engine was touched"

            name = ("other", BUNDLED["name"])[run % 2]
            page.goto(f"{running.console}/profiles/{name}")
            button = page.get_by_role("button", name="Activate").first
            started = time.perf_counter()
            button.click()
            running.wait_until(partial(serves, name), f"{name} is ready")
            to_ready.append(time.perf_counter() - started)
    return to_finding, to_ready


def main() -> int:
    to_answer, to_token = time_starts()
    to_finding, to_ready = time_activations()
    return conclude(
        [
            Figure("front_door_answers_s", "process start to the first HTTP answer", to_answer, 0.5),
            Figure("first_token_s", "process start to the first token over HTTP", to_token, 3.5),
            Figure("missing_model_told_s", "Activate to a missing model told, with its fix", to_finding, 2.0),
            Figure("activated_ready_s", "Activate to ready, another profile", to_ready, 5.0),
            Figure("swapped_s", "a request for another model to its first token", time_swaps(), 3.0),
        ]
    )


if __name__ == "__main__":
    sys.exit(main())
