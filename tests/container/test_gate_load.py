"""The gate under connections that send nothing, run as a process in front of a stand-in for Docker."""

from __future__ import annotations

import shutil
import socket
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path

import httpx
import pytest

from tests.container.deployment import ROOT
from tests.container.test_gate import ENGINE_PATH

SLOW = 150
ANSWER = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nContent-Type: application/json\r\n\r\n{}"
WITHIN_S = 1.0

pytestmark = pytest.mark.skipif(not shutil.which("haproxy"), reason="haproxy is not installed")


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        return int(taken.getsockname()[1])


def _docker(path: Path, ending: threading.Event) -> None:
    """Answers every request on this socket with an empty object."""
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(path))
        server.listen(64)
        server.settimeout(0.1)
        while not ending.is_set():
            with suppress(TimeoutError):
                connection, _ = server.accept()
                threading.Thread(target=_answer, args=(connection,), daemon=True).start()


def _answer(connection: socket.socket) -> None:
    with connection, suppress(OSError):
        while connection.recv(65536):
            connection.sendall(ANSWER)


@pytest.fixture
def gate(tmp_path: Path) -> Iterator[int]:
    """The port of a gate with our rules; only its addresses are others."""
    port, health, docker = _free_port(), _free_port(), tmp_path / "docker.sock"
    text = (ROOT / "gate" / "haproxy.cfg").read_text()
    for ours, here in (
        ("bind :2375", f"bind 127.0.0.1:{port}"),
        ("bind 127.0.0.1:8404", f"bind 127.0.0.1:{health}"),
        ("unix@/var/run/docker.sock", f"unix@{docker}"),
    ):
        assert ours in text
        text = text.replace(ours, here)
    (tmp_path / "haproxy.cfg").write_text(text)
    ending = threading.Event()
    standing_in = threading.Thread(target=_docker, args=(docker, ending))
    standing_in.start()
    process = subprocess.Popen(["haproxy", "-db", "-f", str(tmp_path / "haproxy.cfg")], stdout=subprocess.DEVNULL)
    try:
        _wait_until_it_answers(port)
        yield port
    finally:
        process.terminate()
        process.wait(10)
        ending.set()
        standing_in.join()


def _wait_until_it_answers(port: int) -> None:
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline:
        with suppress(httpx.HTTPError):
            if _ask(port) == 200:
                return
        time.sleep(0.1)
    raise AssertionError("the gate does not answer")


def _ask(port: int) -> int:
    return httpx.get(f"http://127.0.0.1:{port}{ENGINE_PATH}/json", timeout=WITHIN_S, trust_env=False).status_code


@pytest.mark.parametrize("sent", [b"", b"GET /v1.44/contain", b"GET / HTTP/1.1\r\nHost: gate\r\n"])
def test_slow_connections_leave_room_for_the_consoles_calls(gate: int, sent: bytes) -> None:
    """Opened from the console's own address, and held open with half a request or none."""
    with ExitStack() as held:
        for _ in range(SLOW):
            slow = held.enter_context(socket.create_connection(("127.0.0.1", gate), timeout=5))
            slow.sendall(sent)
        for _ in range(5):
            assert _ask(gate) == 200
