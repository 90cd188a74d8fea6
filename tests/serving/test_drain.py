"""`POST /appliance/drain`: new requests are refused, running ones finish, and the rest end at the deadline."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import httpx
import pytest

from appliance.front_door_token import digest
from appliance.home import Home
from tests.serving.test_access import bearer
from tests.supervisor.scripted import Door

TOKEN = "console-secret"


@contextmanager
def started(home: Home) -> Iterator[Door]:
    """A front door that takes 20 ms for a token."""
    home.front_door_digest.write_text(digest(TOKEN))
    with Door(home, token_s=0.02) as door:
        door.wait("ready")
        yield door


@pytest.fixture
def serving(home: Home) -> Iterator[Door]:
    """One to drain."""
    with started(home) as door:
        yield door


@pytest.fixture(scope="module")
def refusing(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Door]:
    """One for all that is refused."""
    with started(Home.at(tmp_path_factory.mktemp("refusing") / "home").create()) as door:
        yield door


def drain(door: Door, within_s: float, why: str = "") -> httpx.Response:
    return door.http.post("/appliance/drain", json={"within_s": within_s, "why": why}, headers=bearer(TOKEN))


def ask(door: Door, max_tokens: int) -> tuple[threading.Thread, list[httpx.Response]]:
    """A request under way in a thread, and where its answer will be."""
    answers: list[httpx.Response] = []
    body: dict[str, Any] = {"prompt": "x", "max_tokens": max_tokens}
    thread = threading.Thread(
        target=lambda: answers.append(httpx.post(f"{door.url}/v1/completions", json=body, timeout=30))
    )
    thread.start()
    until(lambda: door.state()["requests"] == 1)
    return thread, answers


def until(condition: Callable[[], bool], timeout_s: float = 10) -> None:
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_a_drain_refuses_new_requests_and_lets_running_ones_finish(serving: Door) -> None:
    """The front door stays up to say that its launch has ended."""
    thread, answers = ask(serving, 60)
    told = drain(serving, 30)
    assert told.status_code == 202
    assert (told.json()["state"], told.json()["requests"]) == ("draining", 1)
    assert told.json()["drain_until"] == pytest.approx(time.time() + 30, abs=5)
    refused = serving.http.post("/v1/completions", json={"prompt": "x"})
    assert refused.status_code == 503
    assert int(refused.headers["retry-after"]) > 0
    thread.join(10)
    assert answers[0].json()["usage"]["completion_tokens"] == 60
    stopped = serving.wait("stopped")
    assert (stopped["requests"], stopped["drain_until"]) == (0, None)
    assert "reason" not in stopped["launch"]


API = (
    ("POST", "/v1/chat/completions", {"messages": [{"role": "user", "content": "x"}]}),
    ("POST", "/v1/completions", {"prompt": "x"}),
    ("GET", "/v1/models", None),
    ("GET", "/v1/models/anything", None),
)


@pytest.mark.parametrize(("within_s", "least", "most"), [(300, 60, 60), (20, 15, 20)])
def test_whoever_is_refused_is_told_when_to_come_back(serving: Door, within_s: float, least: int, most: int) -> None:
    """By the deadline, on every path of the API; no longer than clients are willing to wait."""
    thread, _ = ask(serving, 400)
    drain(serving, within_s)
    for method, path, body in API:
        refused = serving.http.request(method, path, json=body)
        assert (path, refused.status_code) == (path, 503)
        assert least <= int(refused.headers["retry-after"]) <= most
    drain(serving, 0)
    thread.join(10)


def test_at_the_deadline_the_rest_are_ended(serving: Door) -> None:
    thread, answers = ask(serving, 400)
    drain(serving, 0.3)
    stopped = serving.wait("stopped")
    thread.join(10)
    assert answers[0].status_code == 502
    assert "1 request" in stopped["launch"]["reason"]


def test_a_drain_with_no_time_ends_the_requests_at_once(serving: Door) -> None:
    """Whoever waits, and the history, are told who did it and how many requests it ended."""
    thread, answers = ask(serving, 400)
    told = drain(serving, 0, "Stopped by ann")
    assert told.status_code == 202
    stopped = serving.wait("stopped")
    thread.join(10)
    reason = stopped["launch"]["reason"]
    assert reason.startswith("Stopped by ann")
    assert "1 request" in reason
    assert (answers[0].status_code, reason in answers[0].json()["error"]["message"]) == (502, True)


def test_a_drain_that_came_to_its_end_says_who_wanted_it(serving: Door) -> None:
    drain(serving, 300, "Stopped by ann")
    assert serving.wait("stopped")["launch"]["reason"] == "Stopped by ann."


def test_a_launch_that_does_not_serve_yet_is_ended_too(home: Home) -> None:
    home.front_door_digest.write_text(digest(TOKEN))
    with Door(home, load_s=600) as door:
        door.wait("starting")
        drain(door, 300)
        assert door.state()["state"] == "starting"
        drain(door, 0, "Stopped by ann")
        assert door.wait("stopped")["launch"]["reason"] == "Stopped by ann."


def test_a_second_drain_sets_a_new_deadline(serving: Door) -> None:
    thread, answers = ask(serving, 400)
    drain(serving, 300)
    drain(serving, 0.2)
    serving.wait("stopped")
    thread.join(10)
    assert answers[0].status_code == 502


def test_an_idle_engine_is_drained_at_once(serving: Door) -> None:
    drain(serving, 300)
    serving.wait("stopped")


@pytest.mark.parametrize("within_s", [-1, 1e9, "soon"])
def test_a_deadline_that_is_none_is_refused(refusing: Door, within_s: Any) -> None:
    answer = drain(refusing, within_s)
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "within_s")
    assert refusing.state()["state"] == "ready"


@pytest.mark.parametrize("why", ["x" * 501, "two\nlines"])
def test_a_reason_that_no_line_can_show_is_refused(refusing: Door, why: str) -> None:
    answer = drain(refusing, 0, why)
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "why")
    assert refusing.state()["state"] == "ready"


def test_only_the_console_may_drain(refusing: Door) -> None:
    assert refusing.http.post("/appliance/drain", json={"within_s": 1}).status_code == 401
    assert refusing.state()["state"] == "ready"
