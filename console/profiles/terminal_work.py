"""What `ingot profile` does: opens the database as the console does, and leaves what restarts the engine to the console
that runs."""

from __future__ import annotations

import asyncio
import contextlib
import getpass
from collections.abc import Awaitable, Callable, Iterator, Mapping
from typing import Any, Literal, TypeVar

import click
import msgspec

from appliance.home import Home
from appliance.home_lock import may_be_held
from appliance.launches.catalogue import Catalogue
from console import authors, first_start
from console.backups.interrupted_restore import finish_if_alone
from console.db.failures import DATABASE_ERRORS, explain
from console.db.launch_index import LaunchIndex
from console.db.schema import SchemaError, migrate
from console.db.sessions import Database
from console.profiles import printing
from console.profiles.activator import Activated, Activator
from console.profiles.errors import NoState, NotFound, ProfileRefusal, Refused, Undecided
from console.profiles.inspection import Inspector
from console.profiles.preflight import Preflight
from console.profiles.records import ProfileHistory, ProfileSummary, SavedRevision
from console.profiles.running_console import RunningConsole
from console.profiles.store import ProfileStore
from console.profiles.transfer import Planned, carry_out, exported, plan

T = TypeVar("T")

EXIT_STATUS: dict[type[ProfileRefusal], int] = {Refused: 3, Undecided: 4}


class Shown(msgspec.Struct, frozen=True, kw_only=True):
    """What `show` shows: a revision, and the profile that it is of."""

    revision: SavedRevision
    profile: ProfileHistory


class Imported(msgspec.Struct, frozen=True, kw_only=True):
    """What `import` would do and what it did, which is nothing in a dry run."""

    planned: list[Planned]
    saved: list[SavedRevision] = []


class Work:
    """One command's work on an open database."""

    def __init__(self, home: Home, database: Database) -> None:
        self._home = home
        self._database = database
        self._store = ProfileStore(database, home)
        self._console = RunningConsole(home)

    async def summaries(self) -> list[ProfileSummary]:
        return await self._store.summaries()

    async def show(self, name: str, number: int | None) -> Shown:
        return Shown(revision=await self._store.revision(name, number), profile=await self._store.history(name))

    async def export(self, name: str, number: int | None, kind: Literal["yaml", "json"]) -> str:
        return exported(await self._store.revision(name, number), kind)

    async def import_(self, texts: list[tuple[str, bytes]], confirm: Callable[[list[Planned]], bool]) -> Imported:
        """`confirm` is shown what would be done, and says whether to do it."""
        planned = await plan(self._store, texts)
        if not confirm(planned) or any(item.problems for item in planned):
            return Imported(planned=planned)
        return Imported(planned=planned, saved=await carry_out(self._store, planned, author=_who()))

    async def save_fixed(self, name: str, revision: str, document: Mapping[str, Any], note: str) -> str:
        """The new revision's name. Raises Stale where `revision` (as `r7`) is not the latest any more."""
        base = int(revision.removeprefix("r")) if revision.removeprefix("r").isdecimal() else 0
        return (await self._store.save(name, document, base=base, author=_who(), note=note)).revision.what

    async def activate(self, name: str, number: int | None, *, anyway: bool, when: str) -> Activated:
        number = (await self._store.revision(name, number)).number
        activated = await self._console.activate(name, number, anyway=anyway, when=when)
        return activated or await self._activator().activate(name, number, anyway=anyway)

    async def roll_back(self, *, when: str) -> Activated:
        return await self._console.roll_back(when=when) or await self._activator().roll_back()

    def _activator(self) -> Activator:
        """Without an engine to restart: that is the console's, and none runs."""
        preflight = Preflight(self._home, Inspector(self._home), engine_url=None)
        return Activator(self._home, self._database, preflight)


def working(do: Callable[[Work], Awaitable[T]], *, creates: bool = False) -> T:
    """Run a command's work on the database of INGOT_HOME. Where there is none, a command that `creates` makes it as the
    console does; any other raises NoState."""
    home = Home.from_environment()
    if not creates and not home.database.exists():
        raise NoState(home.root)
    try:
        home.create()
    except OSError as error:
        raise click.ClickException(
            f"The state folder {home.root} cannot be created: {error.strerror}. Set INGOT_HOME to a writable folder."
        ) from error
    finish_if_alone(home)
    is_new = not home.database.exists()
    migrate(home.database, home.root / "backups")

    async def work() -> T:
        database = Database(home.database)
        try:
            if is_new:
                await first_start.seed_database(home, database)
            await LaunchIndex(database, Catalogue(home)).refresh()
            return await do(Work(home, database))
        finally:
            await database.close()

    return asyncio.run(work())


def running_launch() -> str | None:
    """The launch that may be running on INGOT_HOME."""
    home = Home.from_environment()
    return Catalogue(home).current() if may_be_held(home.lock) else None


@contextlib.contextmanager
def failures_told(*, as_json: bool, asks: bool = False) -> Iterator[None]:
    """What can go wrong, as a message (or as JSON) and an exit status. Undecided is passed on where the caller asks."""
    try:
        yield
    except ProfileRefusal as error:
        if isinstance(error, NotFound):
            error.remedy = error.in_terminal
        if isinstance(error, Undecided) and asks:
            raise
        if as_json:
            click.echo(printing.as_json(printing.refusal_as_data(error)))
        else:
            printing.refusal(error)
        raise SystemExit(EXIT_STATUS.get(type(error), 1)) from error
    except DATABASE_ERRORS as error:
        failure = explain(error, Home.from_environment().database)
        if failure is None:
            raise
        raise click.ClickException(f"{failure.message} {failure.remedy}") from error
    except SchemaError as error:
        raise click.ClickException(str(error)) from error


def _who() -> str:
    """The author to record: the logged-in user, if known."""
    try:
        return getpass.getuser()
    except (OSError, KeyError):
        return authors.COMMAND_LINE
