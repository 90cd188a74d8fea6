"""Runs the console's web server in this process, and tells the terminal how to get in."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import socket
from collections.abc import Iterator

from rich.console import Console as Terminal
from rich.markup import escape

from appliance.profile.schema import ProfileError
from appliance.serving.http_server import Server
from console import address, engine_lines, first_start
from console.access import keys, unattended
from console.access.keys import restore_keys
from console.access.setup import new_code
from console.app import Console, create_app
from console.db import schema
from console.db.failures import DATABASE_ERRORS, explain
from console.engine_control.base import EngineControl, EngineControlError
from console.profiles.startable import restore_startable
from console.settings import ConsoleConfig
from console.terminal import standard_output
from console.way_in import WayIn, print_way_in


async def serve(
    config: ConsoleConfig,
    control: EngineControl,
    listening: socket.socket,
    *,
    start_engine: bool,
    recovered: bool = False,
) -> int:
    """Until SIGINT, SIGTERM or the terminal's end: migrate, seed a new folder, print the way in, tell of the engine.
    `recovered`: a restore was finished at this start, which an engine that runs has not heard of."""
    terminal = standard_output()
    with explained(config):
        await asyncio.to_thread(schema.migrate, config.home.database, config.home.root / "backups")
        app = create_app(config, control)
        console: Console = app.state.console
        way_in = await make_ready(config, console)
    server = Server(app, log_level="warning")

    def end() -> None:
        console.hub.close()
        server.should_exit = True

    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        loop.add_signal_handler(number, end)
    serving = asyncio.create_task(server.serve(sockets=[listening]))
    with address.recorded(config.home, config.host, config.port):
        print_way_in(terminal, config, way_in)  # whoever reads it finds the address written
        if start_engine:
            await start(terminal, control, anew=way_in.restored or recovered)
        with engine_problems_told(terminal):
            await console.engine.resume()
        telling = asyncio.create_task(engine_lines.tell(terminal, console))
        await serving
    telling.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await telling
    return 0


async def make_ready(config: ConsoleConfig, console: Console) -> WayIn:
    """Bring the state folder's files and the database together."""
    await first_start.seed_database(config.home, console.database)
    await restore_keys(config.home, console.database)
    await restore_startable(config.home, console.database)
    restored = False
    with contextlib.suppress(ProfileError):  # an unreadable active profile is the engine's to report
        restored = await first_start.restore_active(config.home, console.database)
    async with console.database.session() as session:
        await unattended.set_up(session, config)
        return WayIn(restored, await new_code(session), await keys.is_required(session))


@contextlib.contextmanager
def explained(config: ConsoleConfig) -> Iterator[None]:
    """A database that cannot be used at the start ends it, in words."""
    try:
        yield
    except DATABASE_ERRORS as error:
        failure = explain(error, config.home.database)
        if failure is None:
            raise
        raise schema.SchemaError(f"{failure.message} {failure.remedy}") from error


async def start(terminal: Terminal, control: EngineControl, *, anew: bool) -> None:
    """`anew`: an engine that runs already has not read the profile that was just written. The console serves on
    without an engine: that is when it is needed."""
    with engine_problems_told(terminal):
        await (control.restart() if anew else control.start())


@contextlib.contextmanager
def engine_problems_told(terminal: Terminal) -> Iterator[None]:
    try:
        yield
    except EngineControlError as error:
        terminal.print(f"[bold]Engine [/]  {escape(str(error))}", soft_wrap=True)
