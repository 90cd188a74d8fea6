"""Runs the console's web server in this process, and tells the terminal how the engine comes up."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import socket
from collections.abc import Iterator

from rich.console import Console as Terminal
from rich.markup import escape

from appliance.profile.schema import ProfileError
from appliance.protocol import State
from appliance.serving.http_server import Server
from console import address, first_start, formats
from console.access import unattended
from console.access.keys import restore_keys
from console.access.setup import new_code
from console.app import Console, create_app
from console.db import schema
from console.db.failures import DATABASE_ERRORS, explain
from console.engine_control.base import EngineControl, EngineControlError
from console.live.view import EngineView
from console.settings import ConsoleConfig

SETTLED = frozenset({State.READY, State.FAILED, State.HUNG})
TELL_EVERY_S = 0.1


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
    terminal = Terminal(highlight=False)
    with explained(config):
        await asyncio.to_thread(schema.migrate, config.home.database, config.home.root / "backups")
        app = create_app(config, control)
        console: Console = app.state.console
        restored, code = await make_ready(config, console)
    server = Server(app, log_level="warning")

    def end() -> None:
        console.hub.close()
        server.should_exit = True

    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        loop.add_signal_handler(number, end)
    serving = asyncio.create_task(server.serve(sockets=[listening]))
    with address.recorded(config.home, config.host, config.port):
        print_way_in(terminal, config, code)  # whoever reads it finds the address written
        if start_engine:
            await start(terminal, control, anew=restored or recovered)
        with engine_problems_told(terminal):
            await console.engine.resume()
        telling = asyncio.create_task(tell_engine(terminal, console))
        await serving
    telling.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await telling
    return 0


async def make_ready(config: ConsoleConfig, console: Console) -> tuple[bool, str | None]:
    """Bring the state folder's files and the database together; (whether the active profile had to be written out
    again, the set-up code where nobody can sign in yet)."""
    await first_start.seed_database(config.home, console.database)
    await restore_keys(config.home, console.database)
    restored = False
    with contextlib.suppress(ProfileError):  # an unreadable active profile is the engine's to report
        restored = await first_start.restore_active(config.home, console.database)
    async with console.database.session() as session:
        await unattended.set_up(session, config)
        return restored, await new_code(session)


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


def print_way_in(terminal: Terminal, config: ConsoleConfig, code: str | None) -> None:
    host = {"0.0.0.0": "127.0.0.1", "::": "[::1]"}.get(config.host, config.host)
    url = config.console_url or f"http://{host}:{config.port}"
    if code is None:
        terminal.print(f"[bold]Console[/]  {url}", soft_wrap=True)
    else:
        terminal.print(f"[bold]Set up [/]  {url}/setup?code={code}", soft_wrap=True)
        terminal.print(
            "         [dim]Open this link to create the administrator's account. It works once.[/]", soft_wrap=True
        )


async def tell_engine(terminal: Terminal, console: Console) -> None:
    """One line that changes until the engine is ready or has failed; only the last where the output is no terminal."""
    if console.control.kind == "none":
        return
    status = terminal.status("") if terminal.is_terminal else None
    if status:
        status.start()
    try:
        while True:
            view = console.follower.view
            if status:
                status.update(describe(view))
            if view.reachable and view.state in SETTLED:
                break
            if not view.control.running and (view.control.ended or view.control.problem):
                break
            await asyncio.sleep(TELL_EVERY_S)
    finally:
        if status:
            status.stop()
    terminal.print(f"[bold]Engine [/]  {describe(console.follower.view)}", soft_wrap=True)


def describe(view: EngineView) -> str:
    """The engine in one line."""
    profile = " ".join(view.active) if view.active else "no profile"
    if view.ready:
        launch = view.launch
        after = f" after {formats.seconds(launch.ready_after_s)}" if launch and launch.ready_after_s else ""
        return f"ready{after}: {profile}"
    if view.launch and view.state in (State.FAILED, State.HUNG):
        return f"{view.word}: {view.cause}"
    if not view.reachable and view.problem:
        return f"{view.word}: {view.problem.message}"
    if not view.reachable and view.control.ended:
        return f"ended at once: {view.control.ended}. {view.control.who}"
    if view.launch and view.launch.phases:
        phase = view.launch.phases[-1]
        return f"{view.word}: {profile}, {phase.phase} {formats.progress(phase)}".rstrip()
    return f"{view.word}: {profile}"
