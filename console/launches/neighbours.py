"""The launches before and after one that help to read it: the last good one, those that failed alike and what was done
then, what was started instead of it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, NamedTuple

from appliance.launches.catalogue import Catalogue
from appliance.profile import document as documents
from appliance.profile.schema import ProfileError
from appliance.protocol import LaunchRecord
from console.launches.fixes import Change, written
from console.launches.follow_up import FollowUp, Kind, read_follow_up
from console.launches.outcome import signature

SIMILAR = 5
LOOKED_BACK = 20
"""Earlier launches of which one may have led to this one: what was done about it was done soon."""


class Remedy(NamedTuple):
    """The next launch of the profile that became ready, what its profile has changed since, and how it came about."""

    record: LaunchRecord
    changes: list[Change]
    kind: Kind | None


class Alike(NamedTuple):
    """An earlier launch that failed in the same way, and what helped then."""

    record: LaunchRecord
    remedy: Remedy | None


@dataclass(frozen=True)
class Neighbours:
    """`came_from` is the launch that this one was started instead of; `restart_of` the one that ended, after which the
    front door started the same revision again by itself, and `restarted` such a launch after this one. `returned_after`
    is a launch that a request asked for and that failed, after which the front door brought this one's profile back."""

    last_good: LaunchRecord | None = None
    alike: list[Alike] = field(default_factory=list)
    alike_count: int = 0
    remedy: Remedy | None = None
    follow_up: FollowUp | None = None
    came_from: tuple[LaunchRecord, FollowUp] | None = None
    restart_of: LaunchRecord | None = None
    restarted: LaunchRecord | None = None
    returned_after: LaunchRecord | None = None


def neighbours(catalogue: Catalogue, record: LaunchRecord) -> Neighbours:
    """Reads launch.json of every launch, and the profiles of those that are shown."""
    records = catalogue.records()
    earlier = [other for other in records if other.id < record.id]
    same = signature(record)
    alike = [other for other in earlier if same and signature(other) == same]
    good = (
        other
        for other in earlier
        if other.profile == record.profile and other.engine == record.engine and other.ready_after_s is not None
    )
    return Neighbours(
        last_good=next(good, None),
        alike=[Alike(other, _remedy(catalogue, records, other)) for other in alike[:SIMILAR]],
        alike_count=len(alike),
        remedy=_remedy(catalogue, records, record) if same or record.ready_after_s is None else None,
        follow_up=read_follow_up(catalogue.home.launch(record.id)),
        came_from=came_from(catalogue, record.id),
        restart_of=next((other for other in earlier if other.id == record.restart_of), None),
        returned_after=next((other for other in earlier if other.id == record.returned_after), None),
        restarted=next((other for other in records if other.restart_of == record.id), None),
    )


def _remedy(catalogue: Catalogue, records: list[LaunchRecord], failed: LaunchRecord) -> Remedy | None:
    """`records` come newest first, so the next one is the last that is later."""
    later = [
        other
        for other in records
        if other.id > failed.id and other.profile == failed.profile and other.ready_after_s is not None
    ]
    if not later:
        return None
    done = read_follow_up(catalogue.home.launch(failed.id))
    kind = done.kind if done is not None and done.launch == later[-1].id else None
    before, after = document(catalogue, failed.id), document(catalogue, later[-1].id)
    changed = [] if before is None or after is None else documents.diff(before, after)
    rows = [Change(change.key, _text(change.before), _text(change.after)) for change in changed]
    return Remedy(later[-1], rows, kind)


def came_from(catalogue: Catalogue, launch_id: str) -> tuple[LaunchRecord, FollowUp] | None:
    """The launch that this one was started instead of, and how that came about."""
    earlier = [other for other in catalogue.ids() if other < launch_id]
    for folder in map(catalogue.find, earlier[:LOOKED_BACK]):
        done = read_follow_up(folder.path) if folder is not None else None
        if folder is not None and done is not None and done.launch == launch_id:
            return folder.record(), done
    return None


def document(catalogue: Catalogue, launch_id: str) -> dict[str, Any] | None:
    """The profile that a launch ran; None if it cannot be read."""
    folder = catalogue.find(launch_id)
    try:
        return documents.parse(folder.profile_text()) if folder is not None else None
    except ProfileError:
        return None


def _text(value: Any) -> str:
    return "not set" if value is None else written(value)
