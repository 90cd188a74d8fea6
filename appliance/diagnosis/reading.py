"""One reading of a failure: the row that it matches, and the exceptions or the line that show it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import msgspec

from appliance.diagnosis import telling
from appliance.diagnosis.axes import axes_of, whose_of
from appliance.diagnosis.blamed_setting import with_changed_files, with_condition, with_damaged_file, with_right_sizes
from appliance.diagnosis.catalogue import Flag, Match, causes_of
from appliance.diagnosis.cause import UNKNOWN
from appliance.diagnosis.error_lines import ErrorLine
from appliance.diagnosis.pointers import is_aftermath, is_pointer
from appliance.diagnosis.provenance import LaunchSettings
from appliance.diagnosis.raise_sites.areas import CIRCUMSTANCES, contradicts
from appliance.diagnosis.raise_sites.lookup import FoundSite, RaiseSites
from appliance.diagnosis.sglang_flags import in_flags
from appliance.diagnosis.traceback_reader import LoggedException
from appliance.diagnosis.vocabulary import family_of
from appliance.protocol import Diagnosis

# Families of what a launch may have chosen.
CHOSEN = ("config", "model-config", "quant-dtype", "backend", "compile")


@dataclass
class Reading:
    """`match` is None where no row fits. `reason` is an earlier line that the one with `match` follows from."""

    match: Match | None
    exceptions: tuple[LoggedException, ...] = ()
    line: ErrorLine | None = None
    reason: ErrorLine | None = None

    @property
    def number(self) -> int:
        if self.line is not None:
            return self.line.line.number
        return min(exception.start for exception in self.exceptions)

    @property
    def specific(self) -> bool:
        return self.match is not None and not self.match.cause.vague

    def diagnosis(self, settings: LaunchSettings, sites: RaiseSites) -> Diagnosis:
        found = self._diagnosis(settings, sites)
        for of_the_model in (with_damaged_file, with_changed_files, with_right_sizes):
            found = of_the_model(found, settings)
        if found.fix is None or not settings.of_sglang:
            return found
        return msgspec.structs.replace(found, fix=in_flags(found.fix))

    def _diagnosis(self, settings: LaunchSettings, sites: RaiseSites) -> Diagnosis:
        site = self._site(sites)
        if self.match is not None and not self._speaks() and (site is None or not _outdone(self.match, site)):
            found = telling.known(self.match, settings, self.exceptions, self.line, self.reason)
            return found if found.family not in CHOSEN else self._with_condition(found, site, settings, sites)
        if self.exceptions:
            return telling.unknown(self.exceptions[0], settings, site, self.exceptions[1:])
        assert site is not None, "without an exception, a row or a site was found"
        assert self.line is not None, "a reading is of exceptions or of a line"
        return telling.logged(self.line.line, site, settings)

    def _with_condition(
        self, found: Diagnosis, site: FoundSite | None, settings: LaunchSettings, sites: RaiseSites
    ) -> Diagnosis:
        """With the setting that the place in the source depends on, where row and message name none."""
        if found.fix is None or found.fix.mends or not settings.of_a_profile:
            return found
        site = site or self._found_site(sites)
        return found if site is None or not site.certain else with_condition(found, site, settings)

    def _speaks(self) -> bool:
        """Whether the message says what happened and to what, where a row knows no more than place or type."""
        if self.match is None or not self.match.cause.vague or not self.exceptions:
            return False
        said = self.exceptions[0].message.lower()
        if any(sign in said for sign in self.match.cause.signs):
            return False
        of_line = self.line is not None and family_of(self.exceptions[0].text) is not None
        return of_line or axes_of(self.exceptions[0]).cause is not None

    def _site(self, sites: RaiseSites) -> FoundSite | None:
        """Not looked for where a row knows more than that it fits."""
        if self.match is not None and not self.match.cause.vague and _has_values(self.match):
            return None
        return self._found_site(sites)

    def _found_site(self, sites: RaiseSites) -> FoundSite | None:
        if self.exceptions:
            return site_of(self.exceptions[0], sites)
        return sites.find(self.line.line.text) if self.line is not None else None


def _has_values(match: Match) -> bool:
    return any(value != UNKNOWN for value in match.groups.values())


def _outdone(match: Match, site: FoundSite) -> bool:
    """Whether the place in the source says more than the row: this one speaks of something else, or is half an answer
    without a way on. A row that fits what the message quotes, rather than its own words, knows what is behind it."""
    own = " ".join((site.site.type, *site.site.parts)).lower()
    quoted = match.cause.signs and not any(sign in own for sign in match.cause.signs)
    if quoted or not site.certain or match.cause.family in CIRCUMSTANCES:
        return False
    if contradicts(match.cause.family, site.area):
        return True
    by_type = not any(sign in " ".join(site.site.parts).lower() for sign in match.cause.signs)
    leads_on = match.cause.patch is not None or match.cause.command or match.cause.look
    return match.cause.vague and (by_type or not leads_on)


def site_of(exception: LoggedException, sites: RaiseSites) -> FoundSite | None:
    """None of one that only reports another: where it was raised tells nothing of that."""
    if is_pointer(exception) or is_aftermath(exception):
        return None
    return sites.find(exception.text, exception.type, [place.text for place, _ in exception.frames])


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
    return _undisplaced(causes_of(link.text, _places(link), only), link)


def _undisplaced(found: tuple[Match, ...], link: LoggedException) -> tuple[Match, ...]:
    whose = whose_of(link) if found else None
    if whose is None or not whose.displaced:
        return found
    return tuple(
        match
        for match in found
        if match.cause.family not in whose.displaced and match.cause.name not in whose.displaced
    )


def causes_of_line(line: ErrorLine, after: bool) -> tuple[Match, ...]:
    """What its exception means, or otherwise the whole line. `after`: the engine was ready before, so that only what no
    process survives counts."""
    found: tuple[Match, ...] = ()
    if line.exception is not None:
        found = _causes_of(line.exception, "deadly" if after else None)
    marked = line.exception is not None or line.tier == "error"
    if found:
        return found
    of_line = causes_of(line.line.text, only="deadly" if after else None if marked else "line")
    return _undisplaced(of_line, line.exception) if line.exception is not None else of_line


def _places(exception: LoggedException) -> str:
    return "\n".join(place.text for place, _ in exception.frames)
