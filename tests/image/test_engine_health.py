"""The health check of the engine's image: it waits for the end of a start, good or bad."""

from __future__ import annotations

import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "appliance" / "image" / "engine-health.sh"


@contextmanager
def front_door(*states: str) -> Iterator[int]:
    """A port where `/health` tells these states, one a request and the last for ever; an empty one is never told."""
    left = list(states)

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            state = left.pop(0) if len(left) > 1 else left[0]
            if not state:
                time.sleep(8)
                return
            self.send_response(200 if state == "ready" else 503)
            self.end_headers()
            self.wfile.write(f'{{"state":"{state}","reason":"as told"}}'.encode())

        def log_message(self, *_: object) -> None:
            return None

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
    try:
        yield server.server_port
    finally:
        server.shutdown()
        server.server_close()


def check(port: int) -> tuple[int, str]:
    text = SCRIPT.read_text().replace("/8000", f"/{port}")
    done = subprocess.run(["bash", "-c", text], capture_output=True, text=True, timeout=30)
    return done.returncode, done.stdout


@pytest.mark.parametrize("states", [["ready"], ["preflight", "starting", "starting", "ready"], ["draining", "ready"]])
def test_it_waits_until_the_engine_is_ready(states):
    with front_door(*states) as port:
        assert check(port) == (0, "")


@pytest.mark.parametrize("state", ["failed", "hung", "stopped", "idle"])
def test_what_will_not_come_is_not_waited_for(state):
    """With the state and its reason, for whoever inspects the container."""
    with front_door("starting", state) as port:
        assert check(port) == (1, f'{{"state":"{state}","reason":"as told"}}\n')


def test_one_that_accepts_and_does_not_answer_is_not_healthy():
    """A front door that stands still."""
    with front_door("") as port:
        assert check(port)[0] == 1


def test_nobody_listens():
    with front_door("ready") as port:
        pass
    assert check(port)[0] == 1
