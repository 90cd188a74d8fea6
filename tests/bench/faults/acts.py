"""What is done to a launch while it starts or serves."""

from __future__ import annotations

import os
import resource
import shutil
import signal
import threading
import time
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import urlsplit

from tests.bench.faults.scene import Scene

MIB = 1 << 20
Act = Callable[[Scene], None]


def while_starting(number: signal.Signals) -> Act:
    """A signal to the core once preflight has let it begin."""

    def act(scene: Scene) -> None:
        if scene.engine == "native":
            scene.hold()
            scene.wait_for_phase("core start")
            scene.go_on()
        scene.send(number)

    return act


def while_serving(number: signal.Signals) -> Act:
    def act(scene: Scene) -> None:
        scene.wait_ready()
        scene.send(number)

    return act


def limit_memory_at_start(scene: Scene) -> None:
    """As `ulimit -v` does."""
    scene.hold()
    _limit(scene, 400 * MIB)
    scene.wait_for_phase("core start")
    scene.acted = time.time()
    scene.go_on()


def limit_memory_while_serving(scene: Scene) -> None:
    """Nothing more is to be had from here on, and a long prompt comes."""
    scene.wait_ready()
    _limit(scene, 0)
    scene.acted = time.time()
    scene.ask([7] * 400)


def hook(name: str, asks: bool) -> Act:
    """Have the core do what `hook/sitecustomize.py` knows by this name; `asks`: a client's request brings it about."""

    def act(scene: Scene) -> None:
        scene.wait_ready()
        scene.acted = time.time()
        (scene.hooks / name).touch()
        if asks:
            scene.ask([7] * 8, 8)

    return act


def _limit(scene: Scene, more: int) -> None:
    """Address space: as much as the core has, and `more`."""
    pid = scene.core()
    status = Path(f"/proc/{pid}/status").read_text().splitlines()
    now = next(int(line.split()[1]) for line in status if line.startswith("VmSize:")) << 10
    resource.prlimit(pid, resource.RLIMIT_AS, (now + more, now + more))


def fill_the_disk(scene: Scene) -> None:
    """All but a MiB of the file system that the state folder lies in."""
    free = shutil.disk_usage(scene.running.home).free
    with (scene.running.home / "filler").open("wb") as file:
        os.posix_fallocate(file.fileno(), 0, max(free - MIB, 1))


class Stranger(BaseHTTPRequestHandler):
    """Some other program's server."""

    def log_message(self, format: str, *arguments: object) -> None:
        return


def take_the_port(scene: Scene) -> None:
    """The engine is stopped, and another program gets its port."""
    scene.press("stop")
    scene.afterwards.callback(scene.press, "start")
    address = urlsplit(scene.running.engine)
    server = ThreadingHTTPServer((address.hostname or "", address.port or 0), Stranger)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    scene.afterwards.callback(server.server_close)
    scene.afterwards.callback(server.shutdown)
