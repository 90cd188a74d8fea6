"""The front door over a launch's whole life: starting, serving, failing, stopping."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest

from appliance.front_door_token import digest
from appliance.home import Home
from appliance.home_lock import read_owner
from tests.running import INGOT, environment
from tests.supervisor.scripted import Door, is_alive, make_profile

BODY = {"prompt": "x", "max_tokens": 400}


def core_of(door: Door) -> psutil.Process:
    (core,) = psutil.Process(door.process.pid).children()
    return core


def running(door: Door) -> int:
    """How many requests the core itself says it works on."""
    return int(door.state()["load"]["running"])


def wait_until(condition: Any, timeout_s: float = 10) -> None:
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_before_it_is_ready_every_request_is_told_so(home: Home) -> None:
    """503 with the state, and how soon to ask again; health is 200 only after a real token."""
    with Door(home, load_s=1.5) as door:
        door.wait("starting")
        assert door.http.get("/health").status_code == 503
        response = door.http.post("/v1/completions", json=BODY)
        assert response.status_code == 503
        assert response.headers["retry-after"] == "1"
        assert response.json()["error"]["code"] == "engine_not_ready"
        assert "starting" in response.json()["error"]["message"]
        assert door.http.get("/v1/models").status_code == 503
        door.wait("ready")
        assert door.http.get("/health").json() == {"state": "ready", "reason": ""}
        assert door.http.post("/v1/completions", json=BODY).status_code == 200
        state = door.state()
        assert state["models"] == ["tiny"]
        assert state["max_model_len"] == 512


def test_a_core_killed_while_it_serves(home: Home) -> None:
    """Open requests end with the reason, new ones get 503, the state says why, and the front door stays."""
    with Door(home, token_s=0.05) as door:
        door.wait("ready")
        outcome: dict[str, Any] = {}

        def ask_streamed() -> None:
            with httpx.stream("POST", f"{door.url}/v1/completions", json={**BODY, "stream": True}) as response:
                outcome["frames"] = [line for line in response.iter_lines() if line.startswith("data: ")]

        def ask_whole() -> None:
            outcome["whole"] = httpx.post(f"{door.url}/v1/completions", json=BODY, timeout=30)

        threads = [threading.Thread(target=ask) for ask in (ask_streamed, ask_whole)]
        for thread in threads:
            thread.start()
        wait_until(lambda: running(door) == 2)
        core_of(door).kill()
        state = door.wait("failed")  # by its silence alone, which takes longer, it would be hung
        for thread in threads:
            thread.join(20)
        error = json.loads(outcome["frames"][-1][6:])["error"]
        assert error["code"] == "engine_failed"
        assert "SIGKILL" in error["message"]
        assert outcome["whole"].status_code == 502
        assert outcome["whole"].json()["error"]["code"] == "engine_failed"
        assert "SIGKILL" in state["launch"]["reason"]
        response = door.http.post("/v1/completions", json=BODY)
        assert response.status_code == 503
        assert "failed" in response.json()["error"]["message"]
        assert "retry-after" not in response.headers
        assert door.http.get("/health").json()["state"] == "failed"
        door.signal(signal.SIGTERM)
        assert door.process.wait(20) == 0


@pytest.mark.parametrize("streamed", [False, True])
def test_a_client_that_goes_away_frees_its_slot(home: Home, streamed: bool) -> None:
    """Not at the end of its answer."""
    with Door(home, token_s=0.05) as door:
        door.wait("ready")
        host, _, port = door.url.removeprefix("http://").partition(":")
        with socket.create_connection((host, int(port))) as connection:
            body = json.dumps({**BODY, "n": 3, "stream": streamed}).encode()
            head = f"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n\r\n"
            connection.sendall(head.encode() + body)
            wait_until(lambda: running(door) == 3)
        wait_until(lambda: running(door) == 0)
        values = door.http.get("/metrics").text
        assert "ingot:request_aborted_total 3.0" in values


def test_a_client_that_does_not_read_holds_up_nobody(home: Home) -> None:
    """Its tokens wait as numbers, the others are answered, and its slot is free when the core has finished."""
    with Door(home, token_s=0.001) as door:
        door.wait("ready")
        host, _, port = door.url.removeprefix("http://").partition(":")
        body = json.dumps({"prompt": "x", "max_tokens": 500, "n": 100, "stream": True, "logprobs": 20}).encode()
        head = f"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n\r\n"
        with socket.socket() as connection:
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            connection.connect((host, int(port)))
            connection.sendall(head.encode() + body)
            assert door.http.post("/v1/completions", json={**BODY, "max_tokens": 5}).status_code == 200
            wait_until(lambda: running(door) == 0, 60)
        assert psutil.Process(door.process.pid).memory_info().rss < 600 << 20


def test_a_stop_string_frees_the_slot(home: Home) -> None:
    """The core is told when the front door has seen enough."""
    with Door(home, token_s=0.01) as door:
        door.wait("ready")
        answer = door.http.post("/v1/completions", json={**BODY, "stop": ["fox"]}).json()
        assert answer["choices"][0]["text"] == "the quick brown "
        wait_until(lambda: running(door) == 0, 1.5)


def test_a_term_drains_then_stops(home: Home) -> None:
    """The running answer comes to its end, new ones are refused, open event streams hold nothing up."""
    with Door(home, token_s=0.05) as door:
        door.wait("ready")
        core = core_of(door)
        answers: list[httpx.Response] = []
        body = {"prompt": "x", "max_tokens": 60}
        thread = threading.Thread(
            target=lambda: answers.append(httpx.post(f"{door.url}/v1/completions", json=body, timeout=30))
        )
        thread.start()
        with httpx.stream("GET", f"{door.url}/appliance/events", timeout=30):
            wait_until(lambda: running(door) == 1)
            door.signal(signal.SIGTERM)
            door.wait("draining")
            response = door.http.post("/v1/completions", json=body)
            assert response.status_code == 503
            assert response.json()["error"]["code"] == "engine_not_ready"
            thread.join(20)
            assert answers[0].status_code == 200
            assert answers[0].json()["usage"]["completion_tokens"] == 60
            assert door.process.wait(20) == 0
        assert not core.is_running()
    (record,) = home.launches.glob("*/launch.json")
    assert json.loads(record.read_text())["state"] == "stopped"
    assert read_owner(home.lock) is None  # one that was killed leaves its name


def test_a_second_term_ends_everything_at_once(home: Home) -> None:
    """However long the answers that are still running would take."""
    with Door(home, token_s=0.05) as door:
        door.wait("ready")
        core = core_of(door)
        with httpx.stream("POST", f"{door.url}/v1/completions", json={**BODY, "stream": True}, timeout=30):
            wait_until(lambda: running(door) == 1)
            door.signal(signal.SIGTERM)
            door.wait("draining")
            door.signal(signal.SIGTERM)
            assert door.process.wait(20) == 1
        wait_until(lambda: not core.is_running(), 20)
    (record,) = (json.loads(file.read_text()) for file in home.launches.glob("*/launch.json"))
    assert record["state"] == "stopped"
    assert record["reason"]


def test_a_killed_front_door_orphans_nothing_and_is_told_by_the_next(home: Home) -> None:
    """The core sees that its parent is gone; the launch that was cut off is closed in the history."""
    with Door(home) as door:
        door.wait("ready")
        core = core_of(door)
        (before,) = (record.parent.name for record in home.launches.glob("*/launch.json"))
        door.process.kill()
        door.process.wait()
        wait_until(lambda: not is_alive(core.pid), 3)
    with Door(home) as door:
        door.wait("ready")
        record = json.loads((home.launch(before) / "launch.json").read_text())
        assert record["state"] == "failed"
        assert "cut off" in record["reason"]
        *_, last = (home.launch(before) / "events.jsonl").read_text().splitlines()
        event = json.loads(last)
        assert event["body"]["state"] == "failed"
        with httpx.stream(
            "GET", f"{door.url}/appliance/events", params={"after": f"{before}/{event['sequence'] - 1}"}, timeout=5
        ) as response:
            ids = (line for line in response.iter_lines() if line.startswith("id: "))
            assert next(ids) == f"id: {before}/{event['sequence']}"
            assert next(ids).endswith("/1")


def test_events_are_followed_and_resumed_over_http(home: Home) -> None:
    """Each with its id; after a broken connection the rest, and nothing twice."""
    with Door(home, load_s=0.5) as door:
        ids: list[str] = []
        kinds: set[str] = set()
        headers: dict[str, str] = {}
        while not ids or "ready" not in kinds:
            with httpx.stream("GET", f"{door.url}/appliance/events", headers=headers, timeout=10) as response:
                assert response.headers["content-type"].startswith("text/event-stream")
                taken = 0
                for line in response.iter_lines():
                    if line.startswith("id: "):
                        ids.append(line[4:])
                        taken += 1
                    elif line.startswith("data: "):
                        body = json.loads(line[6:])["body"]
                        kinds.add(body.get("state", body["type"]))
                    elif not line and (taken >= 3 or "ready" in kinds):
                        break
            headers = {"Last-Event-ID": ids[-1]}
        launch = ids[0].partition("/")[0]
        assert ids == [f"{launch}/{number}" for number in range(1, len(ids) + 1)]
        state = door.state()
        assert state["last_event"].startswith(launch)
        response = door.http.get("/appliance/events", headers={"Last-Event-ID": "nonsense"})
        assert response.status_code == 400


def test_a_client_follows_from_the_state_it_has_read(home: Home) -> None:
    """State first, then the events after its `last_event`: the next change comes first, and nothing before it."""
    home.front_door_digest.write_text(digest("token"))
    with Door(home) as door:
        door.wait("ready")
        state = door.state()
        launch, _, sequence = state["last_event"].rpartition("/")
        with httpx.stream(
            "GET", f"{door.url}/appliance/events", headers={"Last-Event-ID": state["last_event"]}, timeout=10
        ) as response:
            lines = response.iter_lines()
            drained = door.http.post(
                "/appliance/drain", json={"within_s": 5}, headers={"Authorization": "Bearer token"}
            )
            assert drained.status_code == 202
            first = next(line for line in lines if line.startswith("id: "))
            event = json.loads(next(line for line in lines if line.startswith("data: "))[6:])
        assert first == f"id: {launch}/{int(sequence) + 1}"
        assert (event["body"]["type"], event["body"]["state"]) == ("state", "draining")


def test_an_attempt_over_http(home: Home) -> None:
    """422 with the launch that failed, 200 with the findings of one that would not, 400 and 409 for nonsense."""
    home.front_door_digest.write_text(digest("token"))
    headers = {"Authorization": "Bearer token"}
    with Door(home) as door:
        door.wait("ready")

        def attempt(**body: Any) -> httpx.Response:
            return door.http.post("/appliance/attempts", json=body, headers=headers)

        profile = json.loads(make_profile(home).read_text())
        good = attempt(launch="l1", profile=profile)
        assert good.status_code == 200
        assert isinstance(good.json()["findings"], list)
        bad = attempt(launch="l2", revision="r9", profile={**profile, "model": {"path": "missing"}})
        assert bad.status_code == 422
        assert bad.json()["state"] == "failed"
        assert bad.json()["findings"][0]["fix"]["text"]
        assert attempt(launch="l2", profile=profile | {"model": {"path": "missing"}}).status_code == 409
        unrecorded = attempt(launch="l4", profile=profile | {"model": {"path": "missing"}}, record=False)
        assert (unrecorded.status_code, unrecorded.json()["findings"][0]["severity"]) == (200, "error")
        assert not home.launch("l4").exists()
        assert attempt(launch="../../x", profile={}).status_code == 400
        assert attempt(launch="l3").status_code == 400
        state = door.state()
        assert state["state"] == "ready"
        assert state["attempt"]["id"] == "l2"
        assert door.http.post("/v1/completions", json=BODY).status_code == 200


def test_a_second_serve_on_the_same_folder_is_refused_by_name(home: Home, tmp_path: Path) -> None:
    """It says who holds the folder, leaves with status 3, and the first goes on."""
    profile = make_profile(home)
    command = [*INGOT, "serve", "--port", "0", "--profile", str(profile)]
    first = subprocess.Popen(command, env=environment(home.root), stdout=subprocess.PIPE, text=True)
    try:
        assert first.stdout is not None
        url = first.stdout.readline().split()[-1]
        second = subprocess.run(command, env=environment(home.root), capture_output=True, text=True, timeout=20)
        assert second.returncode == 3
        assert second.stderr.startswith("Error: ")
        assert f"process {first.pid}" in second.stderr
        assert url in second.stderr
        assert httpx.get(f"{url}/health").status_code in (200, 503)
        assert len(list(home.launches.iterdir())) <= 1
    finally:
        first.terminate()
        first.communicate(timeout=20)


def test_a_port_that_is_taken_is_a_failed_launch(home: Home) -> None:
    """Said on the terminal with who holds it, recorded for the console, and nothing is left running."""
    profile = make_profile(home)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        command = [*INGOT, "serve", "--port", str(port), "--profile", str(profile)]
        done = subprocess.run(command, env=environment(home.root), capture_output=True, text=True, timeout=20)
    assert done.returncode == 4
    assert f"127.0.0.1:{port}" in done.stderr
    assert str(os.getpid()) in done.stderr
    (record,) = home.launches.glob("*/launch.json")
    launch = json.loads(record.read_text())
    assert launch["state"] == "failed"
    assert launch["findings"][0]["id"] == "port-in-use"


def test_a_state_folder_that_cannot_be_written_is_said(tmp_path: Path) -> None:
    """Before anything is started."""
    (tmp_path / "home").write_text("a file, not a folder")
    done = subprocess.run(
        [*INGOT, "serve", "--port", "0"], env=environment(tmp_path / "home"), capture_output=True, text=True, timeout=20
    )
    assert done.returncode == 5
    assert str(tmp_path / "home") in done.stderr
    assert sys.executable not in done.stderr
