"""How the launches of a profile's revisions went.

Launches are recorded under a profile's name (`launches` outlives `profiles`), and names change hands: a profile can be
renamed, or deleted and another take its name. So a launch belongs to the profile that held the name when it started.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import NamedTuple

import msgspec
from sqlalchemy import ColumnElement, and_, false, not_, or_, select
from sqlalchemy.ext.asyncio import AsyncSession

from appliance.protocol import State
from console.db.models import ActiveRevision, Launch, Revision
from console.launches.outcome import CUT_OFF, REFUSED

LOOKED_AT = 50
"""Good launches of other revisions that are looked through for one that is still there to go back to: the first one
is, unless its profile has been deleted."""


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    """How one launch of a revision went; `revision` is the revision's number."""

    launch: str
    revision: int
    state: str
    reason: str
    cause: str | None
    started: float
    ready_after_s: float | None
    ended: float | None


class Tenure(NamedTuple):
    """A profile had a name from `since` until before `until`."""

    profile_id: int
    name: str
    since: float
    until: float


class History:
    """Which profile had which name when, read once per request."""

    def __init__(self, tenures: Iterable[Tenure]) -> None:
        self._tenures = list(tenures)

    @classmethod
    async def read(cls, session: AsyncSession) -> History:
        name = Revision.document["name"].as_string()
        rows = await session.execute(
            select(Revision.profile_id, name, Revision.created).order_by(Revision.profile_id, Revision.number)
        )
        tenures: list[Tenure] = []
        for profile_id, held, created in rows:
            last = tenures[-1] if tenures else None
            if last is not None and last.profile_id == profile_id:
                if last.name == held:
                    continue
                tenures[-1] = last._replace(until=created)
            tenures.append(Tenure(profile_id, held, created, math.inf))
        return cls(tenures)

    async def of_profile(self, session: AsyncSession, profile_id: int, limit: int = 200) -> list[Outcome]:
        """Its launches, newest first."""
        launches = await session.scalars(
            select(Launch).where(self._belongs_to(profile_id)).order_by(Launch.started.desc()).limit(limit)
        )
        return [outcome for launch in launches if (outcome := _outcome(launch)) is not None]

    async def last_good(self, session: AsyncSession, *, other_than: int | None) -> Revision | None:
        """The revision of the newest launch that was ready, except the one with the id `other_than`. A revision whose
        own last launch failed comes last."""
        good = select(Launch).where(Launch.ready_after_s.is_not(None), Launch.revision != "")
        if other_than is not None and (left_out := await session.get(Revision, other_than)) is not None:
            good = good.where(not_(and_(self._belongs_to(left_out.profile_id), Launch.revision == left_out.label)))
        failed_since = None
        for launch in await session.scalars(good.order_by(Launch.started.desc()).limit(LOOKED_AT)):
            outcome, owner = _outcome(launch), self._owner(launch)
            if outcome is None or owner is None:
                continue
            revision = await session.scalar(
                select(Revision).where(Revision.profile_id == owner, Revision.number == outcome.revision)
            )
            if revision is not None and not await self._failed_last(session, launch, owner):
                return revision
            failed_since = failed_since or revision
        return failed_since

    async def _failed_last(self, session: AsyncSession, good: Launch, owner: int) -> bool:
        """Whether the last launch of the revision of `good` failed. Power that was cut is no fault of a revision."""
        of_revision = and_(self._belongs_to(owner), Launch.revision == good.revision, Launch.state != CUT_OFF)
        last = await session.scalar(select(Launch.state).where(of_revision).order_by(Launch.started.desc()).limit(1))
        return last in (State.FAILED, State.HUNG, REFUSED)

    def _owner(self, launch: Launch) -> int | None:
        for tenure in self._tenures:
            if tenure.name == launch.profile and tenure.since <= launch.started < tenure.until:
                return tenure.profile_id
        return None

    def _belongs_to(self, profile_id: int) -> ColumnElement[bool]:
        return or_(
            false(),
            *(
                and_(Launch.profile == held.name, Launch.started >= held.since, Launch.started < held.until)
                for held in self._tenures
                if held.profile_id == profile_id
            ),
        )


async def roll_back_target(session: AsyncSession) -> Revision | None:
    """The last revision that became ready, other than the active one."""
    active = await session.scalar(select(ActiveRevision.revision_id))
    return await (await History.read(session)).last_good(session, other_than=active)


def _outcome(launch: Launch) -> Outcome | None:
    """None for a launch that was of no saved revision (`ingot serve --profile FILE`)."""
    label = launch.revision
    if not (label.startswith("r") and label[1:].isdecimal() and len(label) < 12):
        return None
    return Outcome(
        launch=launch.launch_id,
        revision=int(label[1:]),
        state=launch.state,
        reason=launch.reason,
        cause=launch.cause,
        started=launch.started,
        ready_after_s=launch.ready_after_s,
        ended=launch.ended,
    )
