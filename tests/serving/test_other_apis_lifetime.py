"""Anthropic's and Ollama's APIs before the engine is ready, and when it dies: told in their own shapes."""

from __future__ import annotations

import json
import threading
from typing import Any

import httpx
import psutil

from appliance.home import Home
from tests.running import wait_for
from tests.supervisor.scripted import Door

HELLO = [{"role": "user", "content": "hello"}]
MESSAGES: dict[str, Any] = {"max_tokens": 400, "messages": HELLO}
CHAT: dict[str, Any] = {"messages": HELLO}


def test_before_the_engine_is_ready(home: Home) -> None:
    """A status that clients try again after."""
    with Door(home, load_s=1.5) as door:
        door.wait("starting")
        for path, body in (("/v1/messages", MESSAGES), ("/v1/messages/count_tokens", MESSAGES), ("/api/chat", CHAT)):
            response = door.http.post(path, json=body)
            assert (response.status_code, response.headers["retry-after"]) == (503, "1")
            kind = response.json()["error"]
            assert isinstance(kind, str) if path == "/api/chat" else kind["type"] == "api_error"


def test_an_engine_that_dies_ends_every_answer(home: Home) -> None:
    """Streams with an event or a line of their own, whole answers with a status."""
    with Door(home, token_s=0.05) as door:
        door.wait("ready")
        came: dict[str, list[str]] = {}
        status: dict[str, int] = {}

        def ask(path: str, body: dict[str, Any], stream: bool) -> None:
            body = {**body, "stream": stream}
            with httpx.stream("POST", f"{door.url}{path}", json=body, timeout=30) as response:
                came[f"{path} {stream}"] = [line for line in response.iter_lines() if line]
                status[f"{path} {stream}"] = response.status_code

        wanted = [(path, body, stream) for path, body in (("/v1/messages", MESSAGES), ("/api/chat", CHAT))
                  for stream in (True, False)]  # fmt: skip
        threads = [threading.Thread(target=ask, args=each) for each in wanted]
        for thread in threads:
            thread.start()
        wait_for("all are running", lambda: door.state()["load"]["running"] == len(wanted), 20)
        psutil.Process(door.process.pid).children()[0].kill()
        for thread in threads:
            thread.join(20)
        assert status == {
            "/v1/messages True": 200, "/v1/messages False": 502, "/api/chat True": 200, "/api/chat False": 502,
        }  # fmt: skip
        assert came["/v1/messages True"][-2] == "event: error"
        last = json.loads(came["/v1/messages True"][-1].removeprefix("data: "))
        assert (last["type"], last["error"]["code"]) == ("error", "engine_failed")
        assert set(json.loads(came["/api/chat True"][-1])) == {"error"}
        assert json.loads(came["/v1/messages False"][0])["error"]["type"] == "api_error"
