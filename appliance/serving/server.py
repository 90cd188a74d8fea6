"""Runs the front door: the HTTP server beside the supervisor in one event loop, until it is stopped.

The server answers before the web framework and the routes are imported, which a thread does meanwhile.
"""

from __future__ import annotations

import asyncio
import gc
import signal
import socket
import sys
import traceback
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from appliance.engine_client.core import CORE_COMMAND, NativeCore
from appliance.home import Home
from appliance.serving.head import with_head
from appliance.serving.http_server import Server
from appliance.serving.opening import Opening
from appliance.serving.pages import AllowedOrigins
from appliance.serving.request_id import named

if TYPE_CHECKING:
    from litestar.types import ASGIApp

    from appliance.supervisor.supervisor import Supervisor


class Options(msgspec.Struct, frozen=True, kw_only=True):
    home: Home
    host: str
    allowed_origins: AllowedOrigins = AllowedOrigins()
    profile_file: Path | None = None
    core_command: tuple[str, ...] = CORE_COMMAND
    started: float


def serve(options: Options, listener: socket.socket, core: NativeCore | None) -> int:
    """Blocks until stopped; the exit status of the process."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # as SIGTERM: asyncio's own handler would wait for the imports
    return asyncio.run(_serve(options, listener, core))


async def _serve(options: Options, listener: socket.socket, core: NativeCore | None) -> int:
    opening = Opening()
    server = Server(with_head(named(opening)), lifespan="off", log_config=None)
    answering = asyncio.create_task(server.serve(sockets=[listener]))
    supervisor, app = await _assemble(options, core)
    opening.open(app)
    stopping = asyncio.Event()
    _on_signals(stopping.set, supervisor)
    launching = asyncio.create_task(_launch(supervisor))
    launching.add_done_callback(_complain)
    await asyncio.wait({asyncio.create_task(stopping.wait()), answering}, return_when=asyncio.FIRST_COMPLETED)
    await supervisor.stop()
    await asyncio.wait({launching})
    supervisor.stream.close()
    server.should_exit = True
    await answering
    return 0


async def _launch(supervisor: Supervisor) -> None:
    await supervisor.run()
    while await supervisor.wanted():
        await supervisor.run()


async def _assemble(options: Options, core: NativeCore | None) -> tuple[Supervisor, ASGIApp]:
    """No launch has begun, so until then a signal ends the process as it ends any other."""
    await asyncio.to_thread(import_module, "appliance.serving.app")
    from appliance.serving.access import Access
    from appliance.serving.app import make_app
    from appliance.serving.front_door import FrontDoor
    from appliance.supervisor.supervisor import Supervisor

    front_door = FrontDoor(options.home)
    supervisor = front_door.supervisor = Supervisor(
        options.home,
        prepare=front_door.prepare,
        profile_file=options.profile_file,
        core=core,
        core_command=options.core_command,
        started=options.started,
        on_figures=front_door.count,
    )
    access = Access(options.home, options.host)
    app = await asyncio.to_thread(make_app, front_door, access, options.allowed_origins)
    # What has been imported stays: the collector, which `ingot serve` held back meanwhile, need never walk it.
    gc.freeze()
    gc.enable()
    return supervisor, app


def _on_signals(stop: Callable[[], None], supervisor: Supervisor) -> None:
    """The first signal stops gracefully, the second ends everything at once."""
    asked = False

    def on_signal() -> None:
        nonlocal asked
        if asked:
            supervisor.end_at_once("Ended at once: a second signal arrived while draining.")
            sys.stderr.write("ingot: second signal, ended at once\n")
            sys.stderr.flush()
            raise SystemExit(1)
        asked = True
        stop()

    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, on_signal)


def _complain(task: asyncio.Task[None]) -> None:
    """A bug: the front door stays up to report the state, and the traceback is in its log."""
    if not task.cancelled() and (error := task.exception()) is not None:
        traceback.print_exception(error, file=sys.stderr)
