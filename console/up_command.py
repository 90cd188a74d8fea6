"""`ingot up`: the console and the engine together, until Ctrl-C.

The engine is started first, since it takes longest; what the console needs is imported while the engine does the same.
"""

from __future__ import annotations

import asyncio
import dataclasses
import os
import signal
import sys
import time

import click

from appliance import recent_homes
from appliance.home import Home
from appliance.home_lock import HomeInUseError, Owner, OwnerLock
from appliance.running_appliance import find_the_appliance
from console import ports
from console.engine_control.base import EngineControl, EngineControlError
from console.settings import SETTINGS, ConsoleConfig, SettingError
from kernels.cast.setting import JIT


def _default(name: str) -> str:
    return next(row.default for row in SETTINGS if row.name == name)


@click.command()
@click.option("--host", help=f"Listen on this address.  [default: {_default('INGOT_CONSOLE_HOST')}]")
@click.option(
    "--port", type=click.IntRange(0, 65535), help=f"The console's port.  [default: {_default('INGOT_CONSOLE_PORT')}]"
)
@click.option(
    "--engine-port",
    type=click.IntRange(1, 65535),
    help=f"The engine's port.  [default: {_default('INGOT_ENGINE_PORT')}]",
)
@click.option("--no-engine", is_flag=True, help="Run only the console, not the engine.")
@click.option("--keep-engine", is_flag=True, help="Leave the engine running when the console ends.")
@click.option("--jit", is_flag=True, help="Compile GPU kernels on demand, for development.")
@click.option("--setup-link", is_flag=True, help="Print a new set-up link for the running console, and exit.")
def up(
    host: str | None,
    port: int | None,
    engine_port: int | None,
    no_engine: bool,
    keep_engine: bool,
    jit: bool,
    setup_link: bool,
) -> None:
    """Run the console and the engine, and print where to find them."""
    if jit:
        os.environ[JIT] = "1"
    flags = {
        "INGOT_CONSOLE_HOST": host,
        "INGOT_CONSOLE_PORT": port,
        "INGOT_ENGINE_PORT": engine_port,
        "INGOT_ENGINE_CONTROL": "none" if no_engine else None,
    }
    given = {name: str(value) for name, value in flags.items() if value is not None}
    if setup_link:
        find_the_appliance()
    home = Home.from_environment()
    try:
        config = ConsoleConfig.from_environment(home, {**os.environ, **given})
        if setup_link:
            sys.exit(asyncio.run(_renew_setup_link(config)))
        _require_two_ports(config)
        home.create()
    except SettingError as error:
        raise click.ClickException(str(error)) from error
    except OSError as error:
        raise click.ClickException(
            f"The state folder {home.root} cannot be created: {error.strerror}. Set INGOT_HOME to a writable folder."
        ) from error
    sys.exit(asyncio.run(_run(config, keep_engine=keep_engine)))


def _require_two_ports(config: ConsoleConfig) -> None:
    """Where the console starts the engine itself, on an address that overlaps its own."""
    hosts = {config.host, config.engine_host}
    overlap = len(hosts) == 1 or bool(hosts & {"0.0.0.0", "::"})
    if config.engine_control == "process" and config.port == config.engine_port and overlap:
        raise click.UsageError(
            f"The console and the engine need different ports; both were given {config.port}. "
            "Choose another with --port or --engine-port."
        )


async def _run(config: ConsoleConfig, *, keep_engine: bool) -> int:
    from console.backups import interrupted_restore
    from console.backups.errors import BackupError
    from console.db.schema import SchemaError

    # Until the server runs and has its own way to end, a SIGTERM ends this as Ctrl-C does: with the engine.
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, signal.raise_signal, signal.SIGINT)
    try:
        control = _control(config)
    except EngineControlError as error:
        click.echo(f"Error: {error}", err=True)
        return 1
    try:
        lock = OwnerLock(config.home.console_lock, "ingot up")
    except HomeInUseError as error:
        click.echo(f"Error: {error}", err=True)
        return 3
    try:
        listening = ports.take(config.host, config.port, "--port")
        config = dataclasses.replace(config, port=listening.getsockname()[1])
        lock.sign(Owner(pid=os.getpid(), host=config.host, port=config.port, started=time.time()))
        finished = interrupted_restore.finish(config.home)
        started = await _start_early(config, control)
        recent_homes.note(config.home.root)
        from console.run import serve

        return await serve(config, control, listening, start_engine=not started, recovered=finished)
    except (ports.PortTakenError, SchemaError, EngineControlError, SettingError, BackupError) as error:
        click.echo(f"Error: {error}", err=True)
        return 1
    finally:
        await control.close(keep_engine=keep_engine)


async def _renew_setup_link(config: ConsoleConfig) -> int:
    from rich.console import Console

    from console.way_in import CannotRenewError, renew_setup_link

    try:
        await renew_setup_link(Console(highlight=False), config)
    except CannotRenewError as error:
        click.echo(f"Error: {error}", err=True)
        return 1
    return 0


def _control(config: ConsoleConfig) -> EngineControl:
    if config.engine_control == "none":
        from console.engine_control.absent import Absent

        return Absent()
    if config.engine_control == "docker":
        from console.engine_control.docker import DockerControl

        return DockerControl(config.engine_container)
    from console.engine_control.process import ProcessControl, serve_command

    return ProcessControl(config.home, serve_command(config.engine_host, config.engine_port))


def _share(home: Home) -> None:
    from console.engine_control.shared_state import share

    try:
        share(home)
    except OSError as error:
        raise SettingError(
            f"{error.filename} cannot be shared with the engine: {error.strerror}. The state folder must belong to the "
            f"console's user: chown -R {os.geteuid()}:{os.getegid()} {home.root}"
        ) from error


async def _start_early(config: ConsoleConfig, control: EngineControl) -> bool:
    """Start the engine before the console's own parts, where its profile is already known. The answer is whether there
    is nothing left to start: one that was stopped on purpose stays so."""
    from console.access.token import ensure_console_token
    from console.engine_control.operations import is_stopped
    from console.new_folder import seed_active

    if control.kind == "docker":
        _share(config.home)
    ensure_console_token(config.home)
    if control.kind != "process":
        return control.kind == "none" or is_stopped(config.home)
    if not (await control.status()).running:
        ports.free(config.engine_host, config.engine_port, "--engine-port")
    seed_active(config.home)
    if is_stopped(config.home):
        return True
    if not config.home.active_profile.exists():
        return False
    await control.start()
    return True
