"""`ingot up` and `ingot serve` as processes of their own, as a person starts them, for tests and benchmarks."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

INGOT = [sys.executable, "-m", "appliance.cli"]
T = TypeVar("T")
ADMINISTRATOR = ("admin", "correct horse battery")


def processor_s() -> float:
    """Seconds of processor time that this process and those of its children that have ended took: what a test
    promises of them does not depend on what else the machine does."""
    return sum(os.times()[:4])


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def environment(home: Path) -> dict[str, str]:
    """This process's environment with the state folder of a test, and nothing else of Ingot's."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("INGOT_")}
    return {**kept, "INGOT_HOME": str(home)}


def fetch(url: str, body: Any = None, timeout_s: float = 30) -> tuple[int, Any]:
    """Status and JSON of a GET, or of a POST of `body`. (0, None) when nobody answers."""
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(url, data, {"content-type": "application/json"})
    try:
        with urllib.request.urlopen(request, timeout=timeout_s) as answer:
            return answer.status, json.load(answer)
    except urllib.error.HTTPError as error:
        return error.code, json.loads(error.read() or b"null")
    except OSError:
        return 0, None


def wait_for(what: str, look: Callable[[], T | None], timeout_s: float = 60, every_s: float = 0.05) -> T:
    """What `look` returns as soon as it is neither None nor False."""
    deadline = time.monotonic() + timeout_s
    while time.monotonic() < deadline:
        found = look()
        if found is not None and found is not False:
            return found
        time.sleep(every_s)
    raise TimeoutError(f"{what}: not within {timeout_s:g} s")


@dataclass
class Appliance:
    """A running console and engine."""

    home: Path
    console: str
    engine: str
    setup_link: str
    process: subprocess.Popen[bytes]
    output: Path

    def state(self) -> dict[str, Any]:
        """`GET /appliance/state`; empty while the front door is away."""
        status, answer = fetch(f"{self.engine}/appliance/state")
        return answer if status == 200 else {}

    def wait_until(self, wanted: Callable[[dict[str, Any]], bool], what: str, timeout_s: float = 60) -> dict[str, Any]:
        def look() -> dict[str, Any] | None:
            state = self.state()
            return state if state and wanted(state) else None

        return wait_for(what, look, timeout_s)

    def wait_ready(self, timeout_s: float = 60) -> dict[str, Any]:
        return self.wait_until(lambda state: state["state"] == "ready", "the engine is ready", timeout_s)

    def cli(self, *arguments: str) -> str:
        """Run `ingot ARGUMENTS` on the same state folder; what it printed. It must succeed."""
        done = subprocess.run(
            [*INGOT, *arguments], env=environment(self.home), capture_output=True, text=True, timeout=60
        )
        assert done.returncode == 0, f"ingot {' '.join(arguments)}: {done.stdout}{done.stderr}"
        return done.stdout

    def stop(self) -> None:
        end(self.process)


@contextlib.contextmanager
def appliance(
    home: Path, variables: Mapping[str, str] = {}, ingot: Sequence[str] = tuple(INGOT)
) -> Iterator[Appliance]:
    """`ingot up` on free ports with the state folder `home`, and `variables` in its environment; ended, with everything
    it started, on the way out. `ingot` is the command, where it is another than the installed one."""
    port, engine_port = free_port(), free_port()
    output = home.parent / f"{home.name}-up.log"
    with output.open("wb") as log:
        process = subprocess.Popen(
            [*ingot, "up", "--port", str(port), "--engine-port", str(engine_port)],
            env=environment(home) | dict(variables),
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    try:
        console = f"http://127.0.0.1:{port}"

        def link() -> str | None:
            assert process.poll() is None, output.read_text()
            found = re.search(r"http://\S+/setup\?code=\S+", output.read_text())
            return found[0] if found else None

        setup_link = wait_for("the set-up link", link) if not (home / "ingot.db").exists() else ""
        wait_for("the console answers", lambda: answers(console))
        yield Appliance(home, console, f"http://127.0.0.1:{engine_port}", setup_link, process, output)
    finally:
        end(process)


@contextlib.contextmanager
def engine(home: Path, *arguments: str) -> Iterator[tuple[subprocess.Popen[bytes], str]]:
    """`ingot serve` alone, on a free port: its process and its address."""
    port = free_port()
    process = subprocess.Popen(
        [*INGOT, "serve", "--port", str(port), *arguments],
        env=environment(home),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    try:
        yield process, f"http://127.0.0.1:{port}"
    finally:
        end(process)


def answers(url: str) -> bool:
    """Whether an HTTP server answers there, whatever it says."""
    try:
        with urllib.request.urlopen(url, timeout=2):
            return True
    except urllib.error.HTTPError:
        return True
    except OSError:
        return False


def exit_on_term() -> None:
    """SIGTERM raises SystemExit from now on, so that what this program has started ends with it. Only the first one
    does: `timeout` sends two, and the second would break off the ending."""

    def leave(number: int, _frame: object) -> None:
        signal.signal(number, signal.SIG_IGN)
        sys.exit(128 + number)

    signal.signal(signal.SIGTERM, leave)


def end(process: subprocess.Popen[bytes]) -> None:
    """As Ctrl-C does it; by force if that does not help."""
    if process.poll() is None:
        process.send_signal(signal.SIGINT)
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


@contextlib.contextmanager
def temporary_home() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="ingot-") as folder:
        yield Path(folder) / "home"
