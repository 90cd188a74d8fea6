"""Faults that the whole appliance survives: console and engine as processes of their own, with the bundled model."""

from __future__ import annotations

import contextlib
import html
import json
import os
import re
import signal
import sqlite3
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest

from appliance.home import Home
from appliance.home_lock import read_owner
from appliance.profile.active import ActiveProfile, bundled_profile, write_active
from tests.running import (
    ADMINISTRATOR,
    INGOT,
    Appliance,
    answers,
    appliance,
    end,
    engine,
    environment,
    fetch,
    wait_for,
)
from tests.supervisor.scripted import Door, is_alive

CHAT = {
    "model": "ingot-guide",
    "messages": [{"role": "user", "content": "Hello"}],
    "max_tokens": 400,
    "ignore_eos": True,
}


@contextlib.contextmanager
def sign_in(running: Appliance) -> Iterator[httpx.Client]:
    """As somebody who has just set the console up."""
    with httpx.Client(
        base_url=running.console,
        headers={"Origin": running.console},
        follow_redirects=True,
        timeout=20,
        trust_env=False,
    ) as browser:
        name, password = ADMINISTRATOR
        form = {"code": running.setup_link.partition("code=")[2], "name": name, "password": password}
        browser.post("/setup", data=form).raise_for_status()
        yield browser


def core_of(url: str) -> psutil.Process:
    """The core behind a front door: the process that runs the engine."""
    port = int(url.rpartition(":")[2])
    for process in psutil.process_iter(["cmdline"]):
        with contextlib.suppress(psutil.Error):
            if str(port) in (process.info["cmdline"] or []) and "serve" in process.info["cmdline"]:
                for child in process.children():
                    if "appliance.engine" in child.cmdline():
                        return child
    raise AssertionError("there is no core")


def end_engine(home: Path) -> None:
    owner = read_owner(Home.at(home).lock)
    if owner is not None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(owner.pid, signal.SIGTERM)


def page_says(browser: httpx.Client, launch: str, what: str, within_s: float = 10) -> str:
    def look() -> str | None:
        text = html.unescape(re.sub(r"<[^>]*>", " ", browser.get(f"/launches/{launch}").text))
        return text if what in text else None

    return wait_for(f"the page says {what!r}", look, within_s)


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Appliance, httpx.Client]]:
    """One appliance for the tests that leave it as they found it, or ready again."""
    with appliance(tmp_path_factory.mktemp("faults") / "home") as running:
        running.wait_ready()
        with sign_in(running) as browser:
            yield running, browser


def restart(running: Appliance, browser: httpx.Client) -> None:
    """Activate the bundled profile again, as a person does after a failure."""
    before = running.state()["launch"]["id"]
    answer = browser.post("/profiles/ingot-guide/activate")
    assert answer.status_code < 400
    running.wait_until(lambda s: s["state"] == "ready" and s["launch"]["id"] != before, "ready again")


def test_a_core_killed_while_it_serves(shared: tuple[Appliance, httpx.Client]) -> None:
    """Whoever waits gets a clear error, the state is failed at once, the page has the cause, the log is kept;
    and the next start works."""
    running, browser = shared
    launch = running.state()["launch"]["id"]
    with httpx.stream("POST", f"{running.engine}/v1/chat/completions", json={**CHAT, "stream": True}) as answer:
        lines = answer.iter_lines()
        assert next(lines).startswith("data: ")
        core_of(running.engine).kill()
        last = [line for line in lines if line.startswith("data: ")][-1]
    state = running.wait_until(lambda state: state["state"] in ("failed", "hung"), "its end is noticed")
    assert state["state"] == "failed"  # by its silence alone, which takes longer, it would be hung
    error = json.loads(last.removeprefix("data: "))["error"]
    assert error["code"] == "engine_failed"
    assert "SIGKILL" in error["message"]
    assert "SIGKILL" in state["launch"]["exit_status"]
    page_says(browser, launch, state["launch"]["diagnosis"]["summary"])
    assert (running.home / "launches" / launch / "engine.log").stat().st_size > 0
    restart(running, browser)


def test_a_stopped_core_is_reported_within_twenty_seconds(shared: tuple[Appliance, httpx.Client]) -> None:
    """SIGSTOP: the process is there, and says nothing. It is gone afterwards, and its stacks or its state are kept."""
    running, browser = shared
    launch, core = running.state()["launch"]["id"], core_of(running.engine)
    core.suspend()
    stopped = time.monotonic()
    state = running.wait_until(lambda state: state["state"] == "hung", "it is hung", 20)
    page_says(browser, launch, "SIGSTOP", 20 - (time.monotonic() - stopped))
    assert "stopped" in state["launch"]["reason"]
    assert "state T" in (running.home / "launches" / launch / "stacks.txt").read_text()
    wait_for("the core is gone", lambda: not is_alive(core.pid), 3)
    restart(running, browser)


def test_a_database_that_is_locked_for_ten_seconds(shared: tuple[Appliance, httpx.Client]) -> None:
    """Whoever holds it, the engine serves on, the state is available, a page answers or says what is wrong, and after
    that everything works as before."""
    running, browser = shared
    held = sqlite3.connect(running.home / "ingot.db", isolation_level=None)
    held.execute("BEGIN EXCLUSIVE")
    released = threading.Timer(10, held.execute, ["COMMIT"])
    held_since = time.monotonic()
    codes: list[int] = []
    try:
        while time.monotonic() - held_since < 9:
            answer = browser.get("/launches")
            codes.append(answer.status_code)
            assert answer.status_code in (200, 503)
            if answer.status_code == 503:
                assert "database" in answer.text
            status, _ = fetch(f"{running.engine}/v1/chat/completions", {**CHAT, "max_tokens": 2})
            assert status == 200
            assert running.state()["state"] == "ready"
            time.sleep(0.5)
    finally:
        held.execute("COMMIT")
        released.cancel()
        held.close()
    assert codes
    wait_for("pages answer again", lambda: browser.get("/launches").status_code == 200, 10)
    assert browser.get("/profiles").status_code == 200


def test_a_half_written_active_profile(shared: tuple[Appliance, httpx.Client]) -> None:
    """A restart meets a torn file: the launch fails in preflight and says which file and what to do, and doing it
    works."""
    running, browser = shared
    active = running.home / "active" / "profile.yaml"
    whole = active.read_bytes()
    active.write_bytes(whole[: len(whole) // 2] + b"\n  - : [")
    browser.post("/engine/restart")
    state = running.wait_until(lambda state: state["state"] == "failed", "it is failed")
    (finding,) = state["launch"]["findings"]
    assert "The active profile cannot be read" in finding["message"]
    assert finding["fix"]["text"]
    page_says(browser, state["launch"]["id"], "The active profile cannot be read")
    restart(running, browser)


def test_a_console_that_is_killed_while_a_launch_runs(tmp_path: Path) -> None:
    """The engine goes on starting, and serves; the next console takes it over with the same launch, and can end it."""
    home = tmp_path / "home"
    with contextlib.ExitStack() as stack:
        running = stack.enter_context(appliance(home))
        browser = stack.enter_context(sign_in(running))
        running.wait_ready()
        browser.post("/engine/restart")
        running.wait_until(lambda state: state["state"] in ("preflight", "starting"), "it starts")
        stack.callback(end_engine, home)  # whatever fails here, no console is left to end it
        running.process.kill()
        running.process.wait()
        launch = running.wait_ready()["launch"]["id"]
        core = core_of(running.engine)
        ports = ["--port", running.console.rpartition(":")[2], "--engine-port", running.engine.rpartition(":")[2]]
        quiet: Any = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL, "start_new_session": True}
        again = subprocess.Popen([*INGOT, "up", *ports], env=environment(home), **quiet)
        stack.callback(end, again)
        wait_for("the console answers", lambda: answers(running.console))
        page_says(browser, launch, "ready")
        assert running.state()["launch"]["id"] == launch
        assert core.is_running()
        browser.post("/engine/stop").raise_for_status()
        wait_for("the core has ended", lambda: not is_alive(core.pid), 10)


def test_a_front_door_that_is_killed(tmp_path: Path) -> None:
    """The core ends within three seconds, and nothing that it started is left."""
    with engine(tmp_path / "home") as (process, url):
        wait_for("it is ready", lambda: fetch(f"{url}/health")[0] == 200)
        family = psutil.Process(process.pid).children(recursive=True)
        assert family
        process.kill()
        process.wait()
        wait_for("nothing is left", lambda: not any(is_alive(child.pid) for child in family), 3)


@pytest.mark.skipif(
    subprocess.run(["unshare", "--mount", "--map-root-user", "true"], capture_output=True, check=False).returncode != 0,
    reason="this machine lets nobody mount a file system of their own",
)
def test_a_full_disk_under_the_launches(tmp_path: Path) -> None:
    """The engine becomes ready and serves though not a byte of its launch can be kept, and says so. When it is killed,
    that is reported, too: from memory."""
    home = Home.at(tmp_path / "home").create()
    script = (
        f'mount -t tmpfs -o size=16k tmpfs "{home.launches}" && '
        f'head -c 100000 /dev/zero > "{home.launches}/filler"; exec "$@"'
    )
    port = httpx.URL("http://127.0.0.1")  # the front door's own choice of port is printed
    command = ["unshare", "--mount", "--map-root-user", "sh", "-c", script, "sh", *INGOT, "serve", "--port", "0"]
    with subprocess.Popen(
        command, env=environment(home.root), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        try:
            assert process.stdout is not None
            url = process.stdout.readline().strip().rpartition(" ")[2]
            assert url.startswith(str(port))

            def settled() -> dict[str, Any] | None:
                _, state = fetch(f"{url}/appliance/state")
                return state if state and state["state"] in ("ready", "failed") else None

            state = wait_for("it is ready, or says why not", settled, 60)
            assert state["state"] == "ready", state["launch"]
            assert fetch(f"{url}/v1/chat/completions", {**CHAT, "max_tokens": 2})[0] == 200
            (core,) = [
                child for child in psutil.Process(process.pid).children() if "appliance.engine" in child.cmdline()
            ]
            core.kill()
            wait_for("it is failed", lambda: fetch(f"{url}/appliance/state")[1]["state"] == "failed", 2)
            _, state = fetch(f"{url}/appliance/state")
            assert "SIGKILL" in state["launch"]["exit_status"]
        finally:
            process.terminate()
            _, told = process.communicate(timeout=20)
    assert "No space left on device" in told


def test_a_clock_that_was_set_back_an_hour(tmp_path: Path) -> None:
    """Launches of the hour that is yet to come are there already: the new one is the present one, on every page."""
    home = Home.at(tmp_path / "home").create()
    later = home.new_launch_id(time.time() + 3600)
    folder = home.launch(later)
    folder.mkdir()
    record = {"id": later, "profile": "bundled", "started": time.time() + 3600, "state": "stopped", "phases": []}
    (folder / "launch.json").write_text(
        json.dumps({**record, "since": time.time() + 3610, "ended": time.time() + 3610})
    )
    write_active(home, ActiveProfile(launch=None, revision="", document=bundled_profile()))
    with appliance(home.root) as running:
        launch = running.wait_ready()["launch"]
        assert launch["id"] > later
        with sign_in(running) as browser:
            page_says(browser, launch["id"], "ready")
            first = re.search(r'href="/launches/([^"]+)"', browser.get("/launches").text)
            assert first is not None
            assert first[1] == launch["id"]
            restart(running, browser)
            assert running.state()["launch"]["id"] > launch["id"]


def test_a_flood_in_the_log(tmp_path: Path) -> None:
    """1.2 million lines as fast as they come, more than 20,000 a second for a minute: the front door answers, its
    memory stays bounded, and the first error, which stands before the flood, is the cause in the end."""
    home = Home.at(tmp_path / "home").create()
    with Door(
        home, at="loaded", do="flood", megabytes=120, fatal=False, first="RuntimeError: before the flood"
    ) as door:
        process = psutil.Process(door.process.pid)
        largest, waits = 0, list[float]()
        while True:
            began = time.monotonic()
            state = door.state()
            waits.append(time.monotonic() - began)
            largest = max(largest, process.memory_info().rss)
            if state["state"] == "failed":
                break
            assert len(waits) < 3000
            time.sleep(0.05)
        lines = int(subprocess.check_output(["wc", "-l", home.launch(state["launch"]["id"]) / "engine.log"]).split()[0])
    assert lines > 1_200_000
    assert "before the flood" in state["launch"]["reason"]
    assert largest < 400 << 20
    assert statistics.quantiles(waits, n=20)[-1] < 1  # a busy machine may keep anyone waiting once
    assert max(waits) < 10
    print(f"{lines} lines, {largest >> 20} MiB, slowest answer {max(waits):.2f} s", file=sys.stderr)
