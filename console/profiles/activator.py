"""Activation: preflight, then make the revision the active one, then restart the engine. One at a time."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import NamedTuple

import msgspec
from sqlalchemy.dialects.sqlite import insert

from appliance.home import Home, write_atomically
from appliance.profile.active import ActiveProfile, make_room, write_active
from appliance.protocol import Finding
from console.authors import done_by
from console.db.models import ActiveRevision
from console.db.sessions import Database
from console.engine_control.base import EngineControlError
from console.engine_control.operations import EngineOperations, When
from console.profiles.errors import EngineUnreachable, NotFound, NotWritten, Refused, UnderWay
from console.profiles.preflight import Preflight
from console.profiles.records import SavedRevision
from console.profiles.startable import publish_startable
from console.profiles.store import ProfileStore


class Activated(msgspec.Struct, frozen=True, kw_only=True):
    """`launch` is the id of the launch that runs the revision; `restarted` is False if it waits for the engine's next
    start, and `waits_for` is how many requests finish first, None if the engine does not say. `findings` are
    preflight's: warnings, or the errors that were overridden."""

    profile: str
    revision: int
    launch: str
    restarted: bool
    waits_for: int | None = 0
    findings: list[Finding] = []

    @property
    def what(self) -> str:
        return f"{self.profile} r{self.revision}"


class _UnderWay(NamedTuple):
    what: str
    code: str


class Activator:
    """Activates revisions of one database on one state folder. Without `engine` (`ingot profile` while no console
    runs) the revision waits for the engine's next start."""

    def __init__(
        self,
        home: Home,
        database: Database,
        preflight: Preflight,
        engine: EngineOperations | None = None,
    ) -> None:
        self._home = home
        self._database = database
        self._preflight = preflight
        self._engine = engine
        self._store = ProfileStore(database)
        self._under_way: _UnderWay | None = None

    async def activate(
        self, name: str, number: int | None = None, *, anyway: bool = False, when: When = When.NOW, who: str = ""
    ) -> Activated:
        """Make revision `number` (or the latest) the active one, and restart the engine with it. Raises Refused when
        preflight finds errors, which `anyway` overrides where they may be gone by the launch, and all of them where the
        launch is for later; UnderWay while another activation runs; EngineUnreachable when the
        revision is active but the engine could not be restarted."""
        return await self._alone(name, number, anyway=anyway, when=when, done="Restarted with", who=who)

    async def roll_back(self, when: When = When.NOW, *, who: str = "") -> Activated:
        """Activate the last revision that became ready, other than the active one. Raises NotFound if there is none."""
        target = await self._store.roll_back_target()
        if target is None:
            raise NotFound(
                "No other revision has been ready yet, so there is nothing to roll back to.",
                "Choose a revision and activate it.",
                in_terminal="Choose a revision and activate it with `ingot profile activate`.",
            )
        return await self._alone(target.profile, target.number, anyway=False, when=when, done="Rolled back to", who=who)

    @contextmanager
    def alone(self, what: str, code: str = "activation-running") -> Iterator[None]:
        """Nothing else is activated while the body runs. Raises UnderWay, with the `code` of what runs, if something
        is."""
        if self._under_way is not None:
            raise UnderWay(self._under_way.what, code=self._under_way.code)
        self._under_way = _UnderWay(what, code)
        try:
            yield
        finally:
            self._under_way = None

    async def _alone(
        self, name: str, number: int | None, *, anyway: bool, when: When, done: str, who: str
    ) -> Activated:
        """`done` and `who` are what ended requests are told."""
        with self.alone(f"{name} r{number}" if number else name):
            revision = await self._store.revision(name, number)
            why = done_by(f"{done} {revision.what}", who)
            return await self._activate(revision, anyway=anyway, when=when, why=why)

    async def _activate(self, revision: SavedRevision, *, anyway: bool, when: When, why: str) -> Activated:
        launch = self._home.new_launch_id()
        document = revision.to_run()
        verdict = await self._preflight.ask(
            launch=launch, revision=revision.label, document=document, record=not anyway
        )
        if verdict.refused:
            refusal = Refused(revision.profile, revision.number, verdict.findings, verdict.attempt)
            if not (anyway and (refusal.transient or self._engine is None)):
                raise refusal
        await self._make_active(revision, launch)
        waits_for: int | None = 0
        if self._engine is not None:
            try:
                waits_for = await self._engine.restart(when, why=why)
            except EngineControlError as error:
                raise EngineUnreachable(
                    f"{revision.what} is active, but the engine could not be restarted: {error}",
                    "Start the engine to use this revision.",
                ) from error
        return Activated(
            profile=revision.profile,
            revision=revision.number,
            launch=launch,
            restarted=self._engine is not None,
            waits_for=waits_for,
            findings=verdict.findings,
        )

    async def _make_active(self, revision: SavedRevision, launch: str) -> None:
        """Row and file change together or not at all: the row is written first, which finds a database that cannot be
        written, and if the commit after the file fails the file is put back."""
        try:
            make_room(self._home)
            before = _read(self._home)
        except OSError as error:
            raise self._not_written(revision, error) from error
        try:
            async with self._database.writing() as session:
                values = {"revision_id": revision.id, "launch": launch, "activated": time.time()}
                row = insert(ActiveRevision).values(id=1, **values)
                await session.execute(row.on_conflict_do_update(index_elements=[ActiveRevision.id], set_=values))
                active = ActiveProfile(launch=launch, revision=revision.label, document=revision.to_run())
                write_active(self._home, active)
                await publish_startable(session, self._home)
        except OSError as error:
            _put_back(self._home, before)
            raise self._not_written(revision, error) from error
        except BaseException:
            _put_back(self._home, before)
            raise

    def _not_written(self, revision: SavedRevision, error: OSError) -> NotWritten:
        return NotWritten(
            f"{self._home.active_profile} could not be written: {error.strerror}. "
            f"{revision.what} was not activated, and the engine was not affected.",
            f"Free some space, or make {self._home.active} writable for the user that runs this, then try again.",
        )


def _read(home: Home) -> bytes | None:
    with suppress(FileNotFoundError):
        return home.active_profile.read_bytes()
    return None


def _put_back(home: Home, before: bytes | None) -> None:
    if before is None:
        home.active_profile.unlink(missing_ok=True)
    elif _read(home) != before:
        write_atomically(home.active_profile, before)
