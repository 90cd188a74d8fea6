"""Profiles and their revisions in the database: made, saved, read, compared, renamed, deleted. No HTTP in here.

A revision is never changed. Whoever writes takes SQLite's write lock before reading, so that two who save at once are
told of each other instead of one overwriting the other.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sqlalchemy import func, select
from sqlalchemy.ext.asyncio import AsyncSession

from appliance.home import Home
from appliance.profile import document as documents
from appliance.profile.document import Change
from appliance.profile.schema import Profile as LoadedProfile
from appliance.profile.schema import ProfileError
from console.db.models import ActiveRevision, Profile, Revision, may_be_stored
from console.db.sessions import Database
from console.profiles.errors import InUse, InvalidDocument, NameTaken, NotFound, Stale
from console.profiles.history import History, Outcome, roll_back_target
from console.profiles.records import ProfileHistory, ProfileSummary, Saved, SavedRevision
from console.profiles.startable import publish_startable


class ProfileStore:
    """`home` is the state folder whose front door is told which profiles requests may start; None of a database that no
    engine runs on."""

    def __init__(self, database: Database, home: Home | None = None) -> None:
        self._database = database
        self._home = home

    # -- reading -----------------------------------------------------------------------------------------------------

    async def summaries(self) -> list[ProfileSummary]:
        """Every profile: the active one first, then by name."""
        async with self._database.session() as session:
            active = await _active_id(session)
            history = await History.read(session)
            newest = select(func.max(Revision.id)).group_by(Revision.profile_id).scalar_subquery()
            latest = await session.scalars(
                select(Revision).join(Profile).where(Revision.id.in_(newest)).order_by(Profile.name)
            )
            summaries = []
            for revision in latest.all():
                outcomes = await history.of_profile(session, revision.profile_id, limit=1)
                running = await session.scalar(
                    select(Revision.number).where(Revision.id == active, Revision.profile_id == revision.profile_id)
                )
                summaries.append(
                    ProfileSummary(
                        name=revision.profile.name,
                        latest=_shown(revision, active),
                        active=running,
                        last_launch=outcomes[0] if outcomes else None,
                    )
                )
            return sorted(summaries, key=lambda summary: summary.active is None)

    async def history(self, name: str) -> ProfileHistory:
        async with self._database.session() as session:
            profile = await _profile(session, name)
            active = await _active_id(session)
            revisions = await session.scalars(_revisions_of(profile).order_by(Revision.number.desc()))
            outcomes: dict[int, list[Outcome]] = {}
            for outcome in await (await History.read(session)).of_profile(session, profile.id):
                outcomes.setdefault(outcome.revision, []).append(outcome)
            return ProfileHistory(
                name=profile.name,
                revisions=[_shown(revision, active) for revision in revisions],
                outcomes=outcomes,
            )

    async def revision(self, name: str, number: int | None = None) -> SavedRevision:
        """The revision with that number, or the latest."""
        async with self._database.session() as session:
            profile = await _profile(session, name)
            return _shown(await _revision(session, profile, number), await _active_id(session))

    async def active(self) -> SavedRevision | None:
        async with self._database.session() as session:
            active = await session.scalar(select(ActiveRevision))
            return _shown(active.revision, active.revision_id) if active else None

    async def roll_back_target(self) -> SavedRevision | None:
        """The last revision that became ready, other than the active one."""
        async with self._database.session() as session:
            good = await roll_back_target(session)
            return _shown(good, await _active_id(session)) if good else None

    async def diff(self, name: str, before: int, after: int) -> list[Change]:
        left, right = await self.revision(name, before), await self.revision(name, after)
        return documents.diff(left.document, right.document)

    # -- writing -----------------------------------------------------------------------------------------------------

    async def create(self, document: Mapping[str, Any], *, author: str, note: str = "") -> SavedRevision:
        """A new profile with its first revision."""
        loaded = load(document)
        async with self._database.writing() as session:
            await _refuse_taken(session, loaded.name)
            profile = Profile(name=loaded.name)
            session.add(profile)
            await session.flush()
            added = await _add_revision(session, profile, 1, loaded, author=author, note=note)
            await self._publish(session)
            return added

    async def save(self, name: str, document: Mapping[str, Any], *, base: int, author: str, note: str = "") -> Saved:
        """A new revision on top of revision `base`. A document with another name renames the profile. Raises Stale
        when `base` is no longer the latest; nothing is saved when nothing changed."""
        loaded = load(document)
        async with self._database.writing() as session:
            profile = await _profile(session, name)
            latest = await _revision(session, profile, None)
            active = await _active_id(session)
            if documents.content_hash(loaded) == latest.content_hash:
                return Saved(revision=_shown(latest, active), new=False)
            if latest.number != base:
                raise Stale(
                    name,
                    base=base,
                    latest=latest.number,
                    author=latest.author,
                    saved=latest.created,
                    changes=documents.diff(latest.document, documents.to_document(loaded)),
                )
            if loaded.name != profile.name:
                await _refuse_active(session, profile, "renamed", "copy it under the new name instead")
                await _refuse_taken(session, loaded.name)
                note = note or f"Renamed from {profile.name}."
                profile.name = loaded.name
            added = await _add_revision(session, profile, latest.number + 1, loaded, author=author, note=note)
            await self._publish(session)
            return Saved(revision=added, new=True)

    async def rename(self, name: str, new_name: str, *, author: str) -> SavedRevision:
        """The same settings under another name, as a new revision."""
        latest = await self.revision(name)
        renamed = documents.apply_patch(latest.document, {"name": new_name})
        return (await self.save(name, renamed, base=latest.number, author=author)).revision

    async def delete(self, name: str) -> int:
        """Delete a profile and all its revisions; its launches stay. The answer is how many revisions there were."""
        async with self._database.writing() as session:
            profile = await _profile(session, name)
            await _refuse_active(session, profile, "deleted", "then delete it")
            count = await session.scalar(select(func.count()).select_from(_revisions_of(profile).subquery()))
            await session.delete(profile)
            await self._publish(session)
            return count or 0

    async def _publish(self, session: AsyncSession) -> None:
        if self._home is not None:
            await publish_startable(session, self._home)


def load(document: Mapping[str, Any]) -> LoadedProfile:
    """`appliance.profile.document.load`, with what is wrong raised as a refusal."""
    try:
        return documents.load(document)
    except ProfileError as error:
        raise InvalidDocument(error.problems) from error


def parse(text: str | bytes) -> dict[str, Any]:
    """`appliance.profile.document.parse`, with what is wrong raised as a refusal."""
    try:
        return documents.parse(text)
    except ProfileError as error:
        raise InvalidDocument(error.problems) from error


async def _profile(session: AsyncSession, name: str) -> Profile:
    profile = await session.scalar(select(Profile).where(Profile.name == name))
    if profile is None:
        raise NotFound(
            f"There is no profile named {name!r}.",
            "It may have been renamed or deleted. The Profiles page lists all of them.",
            in_terminal="`ingot profile list` lists all of them.",
            field="name",
            value=name,
        )
    return profile


def _revisions_of(profile: Profile) -> Any:
    return select(Revision).where(Revision.profile_id == profile.id)


async def _revision(session: AsyncSession, profile: Profile, number: int | None) -> Revision:
    query = _revisions_of(profile).order_by(Revision.number.desc()).limit(1)
    found: Revision | None = None
    if number is None or may_be_stored(number):
        found = await session.scalar(query if number is None else query.where(Revision.number == number))
    if found is None:
        raise NotFound(
            f"{profile.name} has no revision {number}.",
            "The profile's page lists its revisions.",
            in_terminal=f"`ingot profile show {profile.name}` lists its revisions.",
            field="revision",
            value=number,
        )
    return found


async def _active_id(session: AsyncSession) -> int | None:
    active: int | None = await session.scalar(select(ActiveRevision.revision_id))
    return active


async def _refuse_taken(session: AsyncSession, name: str) -> None:
    if await session.scalar(select(Profile.id).where(Profile.name == name)) is not None:
        raise NameTaken(name)


async def _refuse_active(session: AsyncSession, profile: Profile, verb: str, instead: str) -> None:
    active = await session.scalar(select(ActiveRevision))
    if active is not None and active.revision.profile_id == profile.id:
        raise InUse(
            f"{profile.name} is active (r{active.revision.number}) and cannot be {verb}.",
            f"Activate another profile first, or {instead}."
            if verb == "renamed"
            else f"Activate another profile, {instead}.",
            field="name",
            value=profile.name,
        )


async def _add_revision(
    session: AsyncSession, profile: Profile, number: int, loaded: LoadedProfile, *, author: str, note: str
) -> SavedRevision:
    revision = Revision(
        profile=profile,
        number=number,
        document=documents.to_document(loaded),
        content_hash=documents.content_hash(loaded),
        note=note.strip(),
        author=author,
    )
    session.add(revision)
    await session.flush()
    return _shown(revision, None)


def _shown(revision: Revision, active_id: int | None) -> SavedRevision:
    return SavedRevision(
        id=revision.id,
        profile=revision.profile.name,
        number=revision.number,
        document=revision.document,
        content_hash=revision.content_hash,
        note=revision.note,
        author=revision.author,
        created=revision.created,
        active=revision.id == active_id,
    )
