"""One reading of a failure: the row that it matches, and the exceptions or the line that show it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from appliance.diagnosis import telling
from appliance.diagnosis.axes import whose_of
from appliance.diagnosis.catalogue import Flag, Match, causes_of
from appliance.diagnosis.error_lines import ErrorLine
from appliance.diagnosis.provenance import LaunchSettings
from appliance.diagnosis.traceback_reader import LoggedException
from appliance.protocol import Diagnosis


@dataclass
class Reading:
    """`match` is None where no row fits."""

    match: Match | None
    exceptions: tuple[LoggedException, ...] = ()
    line: ErrorLine | None = None

    @property
    def number(self) -> int:
        if self.line is not None:
            return self.line.line.number
        return min(exception.start for exception in self.exceptions)

    @property
    def specific(self) -> bool:
        return self.match is not None and not self.match.cause.vague

    def diagnosis(self, settings: LaunchSettings) -> Diagnosis:
        if self.match is None:
            return telling.unknown(self.exceptions[0], settings)
        return telling.known(self.match, settings, self.exceptions, self.line.line if self.line else None)


def chains_of(exceptions: Iterable[LoggedException]) -> Iterable[tuple[LoggedException, ...]]:
    """Exceptions of one stream that Python linked with each other, first link first."""
    open_: dict[str, list[LoggedException]] = {}
    chains: list[list[LoggedException]] = []
    for exception in exceptions:
        if exception.link and exception.key in open_:
            open_[exception.key].append(exception)
        else:
            open_[exception.key] = [exception]
            chains.append(open_[exception.key])
    return [tuple(chain) for chain in chains]


def best_of(links: Sequence[LoggedException]) -> Reading | None:
    """Of a chain the first link whose cause is known for certain, else the first that is known; with the last that
    says the same."""
    vague: Reading | None = None
    for at, link in enumerate(links):
        for match in _causes_of(link):
            if not match.cause.vague:
                return Reading(match, (link, *_again(match, links[at + 1 :])))
            vague = vague or Reading(match, (link,))
    return vague


def _again(match: Match, links: Sequence[LoggedException]) -> list[LoggedException]:
    cause = (match.cause.family, match.cause.name)
    for link in reversed(links):
        if any((other.cause.family, other.cause.name) == cause for other in _causes_of(link)):
            return [link]
    return []


def _causes_of(link: LoggedException, only: Flag | None = None) -> tuple[Match, ...]:
    """Without those that speak of something else than the place where it was raised."""
    found = causes_of(link.text, _places(link), only)
    whose = whose_of(link) if found else None
    if whose is None or not whose.displaced:
        return found
    return tuple(match for match in found if match.cause.family not in whose.displaced)


def causes_of_line(line: ErrorLine, after: bool) -> tuple[Match, ...]:
    """What its exception means, or otherwise the whole line. `after`: the engine was ready before, so that only what no
    process survives counts."""
    found: tuple[Match, ...] = ()
    if line.exception is not None:
        found = _causes_of(line.exception, "deadly" if after else None)
    marked = line.exception is not None or line.tier == "error"
    return found or causes_of(line.line.text, only="deadly" if after else None if marked else "line")


def _places(exception: LoggedException) -> str:
    return "\n".join(place.text for place, _ in exception.frames)
