"""`ingot serve`: the engine and its front door on one state folder.

The order is what makes it fast: the lock, the port and the core's process come first, then a server that answers, and
only then the web framework is imported, while the core imports its own on another processor.
"""

from __future__ import annotations

import gc
import os
import sys
import time
from pathlib import Path
from typing import NoReturn

import click

from appliance.address import listen, url

STARTED = time.time()

# Exit statuses.
MISUSED = 2  # click's own, of an option
ALREADY_RUNS = 3
CANNOT_LISTEN = 4
CANNOT_WRITE = 5


@click.command()
@click.option("--host", default="127.0.0.1", show_default=True, help="The address to listen on.")
@click.option("--port", default=8000, show_default=True, type=click.IntRange(0, 65535), help="0 for any free port.")
@click.option(
    "--profile",
    "profile_file",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Run this profile instead of the active one.",
)
@click.option("--jit", is_flag=True, help="Compile GPU kernels on demand, for development.")
def serve(host: str, port: int, profile_file: Path | None, jit: bool) -> None:
    """Run the engine and answer the APIs of OpenAI, Anthropic and Ollama."""
    gc.disable()  # until everything is imported: collecting in between only costs time
    from appliance.home import Home
    from appliance.home_lock import HomeInUseError, Owner, OwnerLock
    from appliance.serving.pages import AllowedOrigins

    if jit:
        from kernels.cast.setting import JIT

        os.environ[JIT] = "1"
    try:
        allowed = AllowedOrigins.of(os.environ)
    except ValueError as error:
        _refuse(str(error), MISUSED)
    home = Home.from_environment()
    try:
        home.create()
        lock = OwnerLock(home.lock)
    except HomeInUseError as error:
        _refuse(str(error), ALREADY_RUNS)
    except OSError as error:
        _refuse(
            f"The state folder {home.root} cannot be written: {error.strerror}. Set INGOT_HOME to a writable folder.",
            CANNOT_WRITE,
        )
    try:
        listener = listen(host, port)
    except OSError as error:
        from appliance.supervisor.refusal import refuse_address

        _refuse(refuse_address(home, profile_file, (host, port), error, STARTED), CANNOT_LISTEN)
    port = listener.getsockname()[1]
    lock.sign(Owner(pid=os.getpid(), host=host, port=port, started=STARTED))
    print(f"Ingot is listening on {url(host, port)}", flush=True)

    from appliance.engine_client.core import start_ahead

    core = start_ahead(profile_file or home.active_profile)
    from appliance.serving.server import Options, serve

    options = Options(home=home, host=host, allowed_origins=allowed, profile_file=profile_file, started=STARTED)
    status = serve(options, listener, core)
    lock.release()  # a console that did not start this process knows by it that it was not killed
    sys.exit(status)


def _refuse(message: str, status: int) -> NoReturn:
    """`message` has a line for each error."""
    for line in message.splitlines():
        click.echo(f"Error: {line}", err=True)
    sys.exit(status)
