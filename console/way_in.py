"""How people and programs get in, as a terminal is told: the console's address or set-up link, and the API's."""

from __future__ import annotations

from typing import NamedTuple

from rich.console import Console as Terminal
from rich.markup import escape

from appliance.address import is_loopback
from console import address
from console.access.setup import new_code
from console.db.sessions import Database
from console.settings import ConsoleConfig

CURL = 'curl {base}/v1/completions -d \'{{"prompt": "Ingot is", "max_tokens": 20}}\''
RENEWS = "--setup-link"


class WayIn(NamedTuple):
    """`restored`: the active profile had to be written out again; `code`: the set-up code, where nobody can sign in
    yet; `keyed`: the API requires a key."""

    restored: bool
    code: str | None
    keyed: bool


class CannotRenewError(Exception):
    """There is no use for a set-up link."""


def print_way_in(terminal: Terminal, config: ConsoleConfig, way_in: WayIn) -> None:
    url = config.console_url or address.url(config.host, config.port)
    if way_in.code is None:
        terminal.print(f"[bold]Console[/]  {url}", soft_wrap=True)
    else:
        print_setup_link(terminal, url, way_in.code)
    if config.engine_control != "none":
        _print_api(terminal, config, keyed=way_in.keyed)


def _print_api(terminal: Terminal, config: ConsoleConfig, *, keyed: bool) -> None:
    """Whether a container's API requires a key depends on where its port is published, which only it knows."""
    base = config.published_engine_url.rstrip("/") or address.url(config.engine_host, config.engine_port)
    terminal.print(f"[bold]API    [/]  {base}/v1", soft_wrap=True)
    if keyed:
        terminal.print("         [dim]It requires a key: the Access page creates one.[/]", soft_wrap=True)
    elif config.engine_control == "process" and is_loopback(config.engine_host):
        terminal.print(f"         [dim]Once the engine is ready:[/] {escape(CURL.format(base=base))}", soft_wrap=True)


def print_setup_link(terminal: Terminal, url: str, code: str) -> None:
    terminal.print(f"[bold]Set up [/]  {url}/setup?code={code}", soft_wrap=True)
    terminal.print(
        "         [dim]Open this link to create the administrator's account. It works once; "
        f"`ingot up {RENEWS}` prints a new one.[/]",
        soft_wrap=True,
    )


async def renew_setup_link(terminal: Terminal, config: ConsoleConfig) -> None:
    """Print a link with a new code for the console that runs; earlier ones no longer work. Raises CannotRenewError."""
    url = address.find(config.home)
    if url is None:
        raise CannotRenewError(
            f"No console is running on {config.home.root}. Start it with `ingot up`, which prints the link."
        )
    url = config.console_url or url
    database = Database(config.home.database)
    try:
        async with database.session() as session:
            code = await new_code(session)
    finally:
        await database.close()
    if code is None:
        raise CannotRenewError(f"There is an account already. Sign in at {url}.")
    print_setup_link(terminal, url, code)
