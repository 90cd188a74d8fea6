"""What the launch pages show: the list with its filters, one launch with what belongs to it, the end of one."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from typing import Any

from appliance.profile import document as documents
from appliance.profile.schema import BY_KEY, ProfileError
from appliance.profile.validation import MISSING, get
from appliance.protocol import Event, LaunchRecord, Phase
from console.launches.catalogue import Catalogue
from console.launches.folder import LaunchFolder
from console.launches.outcome import Outcome, broken_phase, cause, outcome, sentence, signature, under_way

PAGE = 25
SIMILAR = 5


@dataclass(frozen=True)
class Row:
    """A launch in a list."""

    record: LaunchRecord
    number: int | None
    outcome: Outcome
    cause: str
    broken_in: str

    @property
    def name(self) -> str:
        return f"Launch {self.number}" if self.number else self.record.id

    @property
    def nothing_known(self) -> bool:
        return not self.record.profile and not self.record.phases


@dataclass(frozen=True)
class Listing:
    rows: list[Row]
    total: int
    page: int
    pages: int
    profiles: list[str]


@dataclass(frozen=True)
class Story:
    """One launch, and what else is known that helps to read it. `similar` are earlier launches that failed alike;
    `last_good` is the launch of the same profile to compare with; `present` the values that the offered fixes would
    replace."""

    row: Row
    sentence: str
    runs: bool
    current: bool
    events: list[Event]
    problems: list[str]
    last_good: LaunchRecord | None
    similar: list[Row]
    similar_count: int
    present: dict[str, Any]

    @property
    def record(self) -> LaunchRecord:
        return self.row.record


class Launches:
    """`current` and `engine_runs` say how the engine stands; `numbers` how launches are called."""

    def __init__(self, catalogue: Catalogue, numbers: dict[str, int], *, engine_runs: bool) -> None:
        self._catalogue = catalogue
        self._numbers = numbers
        self._current = catalogue.current()
        self._engine_runs = engine_runs

    def listing(self, *, group: str = "", profile: str = "", page: int = 1) -> Listing:
        records = self._catalogue.records()
        rows = [self._row(record) for record in records]
        wanted = [
            row
            for row in rows
            if (not group or row.outcome.group == group) and (not profile or row.record.profile == profile)
        ]
        pages = max(1, -(-len(wanted) // PAGE))
        page = min(max(page, 1), pages)
        return Listing(
            rows=wanted[(page - 1) * PAGE : page * PAGE],
            total=len(wanted),
            page=page,
            pages=pages,
            profiles=sorted({record.profile for record in records if record.profile}),
        )

    def story(self, folder: LaunchFolder) -> Story:
        files = folder.read()
        record = files.record
        row = self._row(record)
        earlier = [other for other in self._catalogue.records() if other.id < record.id]
        alike = signature(record)
        similar = [other for other in earlier if alike and signature(other) == alike]
        good = (other for other in earlier if other.profile == record.profile and other.ready_after_s is not None)
        return Story(
            row=row,
            sentence=sentence(record, runs=self._runs(record)),
            runs=self._runs(record),
            current=record.id == self._current,
            events=files.events,
            problems=files.problems,
            last_good=next(good, None),
            similar=[self._row(other) for other in similar[:SIMILAR]],
            similar_count=len(similar),
            present=_values_to_replace(folder.profile_text(), record),
        )

    def _runs(self, record: LaunchRecord) -> bool:
        return under_way(record, self._current, engine_runs=self._engine_runs)

    def _row(self, record: LaunchRecord) -> Row:
        broken = broken_phase(record)
        return Row(
            record=record,
            number=self._numbers.get(record.id),
            outcome=outcome(record, runs=self._runs(record)),
            cause="" if self._runs(record) else cause(record),
            broken_in=broken.phase if broken and broken.phase != Phase.READY else "",
        )


def _values_to_replace(profile_text: str, record: LaunchRecord) -> dict[str, Any]:
    """The launch's own values, or their defaults, of the settings that its fixes patch."""
    fixes = [found.fix for found in (*record.findings, *([record.diagnosis] if record.diagnosis else ())) if found.fix]
    keys = {key for fix in fixes for key in fix.patch or ()}
    try:
        document = documents.parse(profile_text) if keys else {}
    except ProfileError:
        return {}
    values = {key: get(document, key) for key in keys}
    defaults = {key: BY_KEY[key].default for key, value in values.items() if value is MISSING and key in BY_KEY}
    return {key: value for key, value in (values | defaults).items() if value is not MISSING and value is not None}


def delete_folder(folder: LaunchFolder) -> None:
    """Remove all that a launch left. It is moved out of sight first: whoever looks sees all of it or nothing."""
    grave = folder.path.parent.parent / f".deleted-{folder.id}"
    folder.path.rename(grave)
    shutil.rmtree(grave)
