"""What the launch pages show: the list with its filters, one launch with what belongs to it, the end of one."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import msgspec

from appliance.diagnosis.stuck_processes import where_they_are
from appliance.engines import Engine, engine_named
from appliance.launches.catalogue import Catalogue
from appliance.launches.folder import STACKS, LaunchFolder
from appliance.launches.process_ends import first_failure, in_order
from appliance.launches.stacks import Stacks, read_stacks
from appliance.launches.states import ENDED, under_way
from appliance.protocol import Event, Fix, LaunchRecord, Phase, ProcessEnd, State
from console.launches.fixes import together
from console.launches.neighbours import Neighbours, document, neighbours
from console.launches.outcome import Outcome, broken_phase, cause, outcome, sentence
from console.launches.waiting import Expectation, expectation

PAGE = 25
HEARD_WITHIN_S = 5.0
"""A load measured at most this long before a launch's end counts as the load at its end."""


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
class LaunchDetails:
    """One launch, and what else is known that helps to read it. `drawn` is its record as the phase line shows it;
    `document` the profile that it ran; `together` one fix in place of several."""

    row: Row
    sentence: str
    runs: bool
    current: bool
    drawn: LaunchRecord
    events: list[Event]
    problems: list[str]
    expectation: Expectation | None
    neighbours: Neighbours
    document: dict[str, Any] | None
    together: Fix | None
    stacks: Stacks | None

    @property
    def record(self) -> LaunchRecord:
        return self.row.record

    @property
    def engine(self) -> Engine:
        return engine_named(self.record.engine)

    @property
    def doing(self) -> dict[str, str]:
        """What each process of a hung launch waited for or worked on, by its id, as far as its stacks show."""
        return {pid: stuck.place.doing for pid, stuck in where_they_are(self.stacks).items()} if self.stacks else {}

    @property
    def process_ends(self) -> list[ProcessEnd]:
        return in_order(self.record.process_ends)

    @property
    def first_failure(self) -> ProcessEnd | None:
        return first_failure(self.record)


class Launches:
    """`current` and `engine_runs` describe the engine; `numbers` are the launches' numbers; `loads` are times and
    numbers of running requests, oldest first, as far as the console has seen them."""

    def __init__(
        self,
        catalogue: Catalogue,
        numbers: dict[str, int],
        *,
        engine_runs: bool,
        loads: Iterable[tuple[float, int]] = (),
    ) -> None:
        self._catalogue = catalogue
        self._numbers = numbers
        self._current = catalogue.current()
        self._engine_runs = engine_runs
        self._loads = loads

    def listing(self, *, group: str = "", profile: str = "", page: int = 1) -> Listing:
        records = self._catalogue.records()
        rows = [self.row(record) for record in records]
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

    def details(self, folder: LaunchFolder) -> LaunchDetails:
        files = folder.read()
        record = files.record
        runs = self._runs(record)
        around = neighbours(self._catalogue, record)
        ran = document(self._catalogue, record.id)
        return LaunchDetails(
            row=self.row(record),
            sentence=sentence(record, runs=runs, requests_cut=self._requests_cut(record)),
            runs=runs,
            current=record.id == self._current,
            drawn=record if runs or record.state in ENDED else _as_ended(record, files.events),
            events=files.events,
            problems=files.problems,
            expectation=expectation(record, around.last_good) if runs else None,
            neighbours=around,
            document=ran,
            together=together(record, ran),
            stacks=read_stacks(folder.path / STACKS),
        )

    def row(self, record: LaunchRecord) -> Row:
        broken = broken_phase(record)
        runs = self._runs(record)
        return Row(
            record=record,
            number=self._numbers.get(record.id),
            outcome=outcome(record, runs=runs),
            cause="" if runs else cause(record),
            broken_in=broken.phase if broken and broken.phase != Phase.READY else "",
        )

    def _runs(self, record: LaunchRecord) -> bool:
        return under_way(record, self._current, engine_runs=self._engine_runs)

    def _requests_cut(self, record: LaunchRecord) -> int:
        """How many requests were running when a launch that had served ended; 0 if unknown."""
        if record.ready_after_s is None or record.ended is None:
            return 0
        at_end = [running for moment, running in self._loads if -HEARD_WITHIN_S <= moment - record.ended <= 0]
        return at_end[-1] if at_end else 0


def _as_ended(record: LaunchRecord, events: list[Event]) -> LaunchRecord:
    """A launch that was cut off ends at its last known event."""
    heard = events[-1].time if events else record.since
    return msgspec.structs.replace(record, state=State.FAILED, ended=heard)
