"""Finds the cause of a failed launch, and its fix."""

from __future__ import annotations

import signal
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from appliance.core_protocol import Fatal
from appliance.diagnosis import deaths_without_exception as deaths
from appliance.diagnosis import hangs, telling
from appliance.diagnosis.axes import what_said
from appliance.diagnosis.catalogue import causes_of
from appliance.diagnosis.cause import Cause
from appliance.diagnosis.dressing import plain, undress
from appliance.diagnosis.error_lines import EVENT, ErrorLine, error_lines
from appliance.diagnosis.first_exception import cut_short, exceptions_in, first_exception, with_message
from appliance.diagnosis.last_words import asked_to_end, is_last_word, is_of_a_reader, is_uncaught
from appliance.diagnosis.log_text import number_lines
from appliance.diagnosis.outcome import without_failure
from appliance.diagnosis.pointers import (
    is_aftermath,
    is_end_on_request,
    is_fatal,
    is_giving_up,
    is_lead,
    is_of_a_core,
    is_pointer,
    is_survived,
    quoted,
)
from appliance.diagnosis.progress import (
    LOUD,
    ends_after,
    goes_on_after,
    healthy_until,
    ready_at,
    restarts,
    waiting_for,
)
from appliance.diagnosis.provenance import LaunchSettings
from appliance.diagnosis.raise_sites.lookup import NO_SITES, RaiseSites
from appliance.diagnosis.reading import Reading, best_of, causes_of_line, chains_of, site_of
from appliance.diagnosis.searchable import Searchable
from appliance.diagnosis.traceback_reader import LoggedException
from appliance.diagnosis.vocabulary import family_of
from appliance.protocol import Diagnosis, EvidenceLine, Outcome, ProcessEnd

LINES_BETWEEN = 6  # at most, from a program's error to the next that follows from it
OF_HARDWARE = ("arch", "driver", "kernel-crash", "memory", "nccl")
LOOP = "crash-loop"  # the reason for the restarts is better, where there is one


def diagnose(
    lines: Sequence[EvidenceLine],
    *,
    exit_status: int | None = None,
    fatal: Fatal | None = None,
    hang: str | None = None,
    killed_by_kernel: str | None = None,
    died: ProcessEnd | None = None,
    several_ended: bool = False,
    stacks: str | None = None,
    profile: Mapping[str, Any] | None = None,
    model: Path | None = None,
    failed: bool = False,
    sites: RaiseSites = NO_SITES,
) -> Diagnosis:
    """What ended the launch.

    `fatal` is the core's own report, which takes precedence over the log. `exit_status` is as subprocess has it
    (negative for a signal), or a container's (137 for SIGKILL). `died` is the process that ended first (of several, if
    `several_ended`): where a signal ended it, what the others logged after that is aftermath. `hang` says why the
    engine counted as hung, and `stacks` is py-spy's dump of its processes. `killed_by_kernel` is the kernel's record
    that it killed the engine. With none of them, and without `failed`, it is not known that the engine failed: the
    outcome may then be that it serves, that it is not ready where the log ends, or that the log does not show it. An
    engine may fail and exit with 0, as vLLM does when its core is killed.
    `profile` is the launched document; without it, the settings that the log prints are used. `model` is the folder of
    its model. `sites` are where the installed engine raises what no row knows.
    """
    if killed_by_kernel is not None:
        return deaths.killed_by_kernel(killed_by_kernel, died)
    if fatal is not None:
        told = _told(fatal, lines)
        best = best_of([told])
        settings = LaunchSettings(Searchable(lines), profile, model)
        return best.diagnosis(settings, sites) if best else telling.unknown(told, settings, site_of(told, sites))
    if died is not None and deaths.was_put_down(died, lines):
        died = None
    death = deaths.by_death(died, several=several_ended)
    if died is not None and death is not None:
        return _Failures(deaths.lines_of(died, lines), True, profile, model, sites, whole=True).explained(died) or death
    whole = failed  # a caller that knows this has the log from its first line
    failed = failed or bool(exit_status) or hang is not None
    failures = _Failures(lines, failed, profile, model, sites, whole)
    if hang is not None:
        certain = failures.certain()
        return certain if certain is not None else hangs.diagnose_hang(hang, stacks, lines)
    found = failures.tell()
    if found is None or (found.family is None and deaths.signal_of(exit_status) is not None):
        ended = deaths.by_exit_status(exit_status, lines)
        if ended is not None:
            return ended
    if found is not None:
        return failures.with_restarts(found)
    if failed:
        return failures.logged() or deaths.without_a_word(lines, exit_status, died, several=several_ended)
    return without_failure(failures.log)


@dataclass
class _Failures:
    """A log's failures, ordered by how much they explain."""

    lines: Sequence[EvidenceLine]
    failed: bool
    profile: Mapping[str, Any] | None
    model: Path | None
    sites: RaiseSites
    whole: bool
    log: Searchable = field(init=False)
    settings: LaunchSettings = field(init=False)
    ready: int | None = field(init=False)
    healthy: int | None = field(init=False)

    def __post_init__(self) -> None:
        self.log = Searchable(self.lines)
        self.settings = LaunchSettings(self.log, self.profile, self.model)
        self.sites = self.sites.for_log(self.log)
        self.ready = self._number(ready_at(self.log))
        self.healthy = self._number(healthy_until(self.log))

    def _number(self, position: int | None) -> int | None:
        return None if position is None else self.lines[position].number

    def _survived(self, number: int, *, deadly: bool) -> bool:
        """Whether the engine served after that line. After what no process survives, one sign of it is not enough."""
        served = self.healthy if deadly else self.ready
        return served is not None and number < served

    def tell(self) -> Diagnosis | None:
        chains = list(chains_of(exceptions_in(self.lines)))
        deadly = [chain for chain in chains if _ends_a_process(chain)]
        others = [chain for chain in chains if not _ends_a_process(chain) and self._counts(chain)]
        first = self._first(deadly) or self._first(others)
        if first is not None and not first.specific:
            later = self._first(others)
            if later is not None and later.specific and (first.match is not None or later.number < first.number):
                first = later
        if first is not None and first.specific:
            return first.diagnosis(self.settings, self.sites)
        told: list[ErrorLine] = []
        judged = {link.line.number for chain in chains for link in chain}
        line = self._line(told, judged, before=first)
        if line is not None and (line.specific or first is None or first.match is None):
            why = self._only_warned(told) if line.match is not None and line.match.cause.family == LOOP else None
            return why or line.diagnosis(self.settings, self.sites)
        if first is not None:
            return first.diagnosis(self.settings, self.sites)
        return (
            self._quoted(told, chains)
            or self._waits()
            or self._process_gone(silent=self.whole)
            or self._only_pointed_at(told, chains)
            or self._cut_short()
            or self._process_gone(silent=True)
            or self._only_warned(told)
            or self._loops()
            or self._only_gave_up(told)
            or self._only_errors(told)
        )

    def _quoted(self, told: Sequence[ErrorLine], chains: Sequence[Sequence[LoggedException]]) -> Diagnosis | None:
        """What a pointer quotes of the error that it points at, where that is not in the log."""
        pointers = [link for chain in chains for link in chain]
        pointers += [line.exception for line in told if line.exception is not None]
        for exception in sorted(pointers, key=lambda pointer: pointer.line.number):
            error = quoted(exception)
            if error is not None and (self.failed or not self._survived(exception.start, deadly=True)):
                best = best_of([error])
                return best.diagnosis(self.settings, self.sites) if best is not None else self._unknown(error)
        return None

    def explained(self, died: ProcessEnd) -> Diagnosis | None:
        """Why a signal ended that process, as far as the log says it: an exception that ended another before, or what
        native code said as it crashed."""
        chains = list(chains_of(exceptions_in(self.lines)))
        first = self._first([chain for chain in chains if _ends_a_process(chain)])
        if first is None and died.status != -signal.SIGKILL:
            judged = {link.line.number for chain in chains for link in chain}
            found = (self._first(filter(self._counts, chains)), self._line([], judged, before=None))
            first = next((reading for reading in found if reading is not None and reading.specific), None)
        return first.diagnosis(self.settings, self.sites) if first is not None else None

    def certain(self) -> Diagnosis | None:
        """A known cause of an exception that ends a process, whatever else happened."""
        first = self._first([chain for chain in chains_of(exceptions_in(self.lines)) if _ends_a_process(chain)])
        return first.diagnosis(self.settings, self.sites) if first is not None and first.match is not None else None

    def with_restarts(self, found: Diagnosis) -> Diagnosis:
        times, line = restarts(self.log)
        if line is None or found.family == LOOP:
            return found
        return telling.with_restarts(found, times, line)

    def _counts(self, chain: Sequence[LoggedException]) -> bool:
        """Whether a chain that is not surely the end of a process may be."""
        if self.ready is not None and (chain[0].start < self.ready or not (self.failed or self._was_uncaught(chain))):
            return False
        if any(is_survived(link) or is_end_on_request(link) for link in chain):
            return False
        return self.failed or not self._was_caught(chain)

    def _was_uncaught(self, chain: Sequence[LoggedException]) -> bool:
        return is_uncaught(chain[-1], self.lines)

    def _was_caught(self, chain: Sequence[LoggedException]) -> bool:
        """Whether the process that logged it goes on after it."""
        last = chain[-1]
        if last.level and not last.key:  # it may be another process that goes on
            return False
        return goes_on_after(last.line.number, last.key, self.lines)

    def _first(self, chains: Iterable[Sequence[LoggedException]]) -> Reading | None:
        """The first with a certain cause, otherwise the first with a known cause, otherwise the first."""
        vague: Reading | None = None
        unknown: Reading | None = None
        for chain in chains:
            if self._survived(chain[0].start, deadly=_ends_a_process(chain)):
                continue
            links = [link for link in chain if not (is_pointer(link) or is_aftermath(link) or is_end_on_request(link))]
            if not links:
                continue
            links = [with_message(link, self.lines) for link in links]
            best = best_of(links)
            if best is not None and best.specific:
                if unknown is not None and _ends_a_process(unknown.exceptions):
                    return unknown
                return best
            vague = vague or best
            if best is None:
                unknown = unknown or Reading(None, tuple(links))
        return vague or unknown

    def _line(self, told: list[ErrorLine], judged: set[int], before: Reading | None) -> Reading | None:
        """The cause that a single line gives. Beside an unknown exception it counts only if it came first. `told`
        collects the lines that were examined; `judged` are those of exceptions with a traceback, already handled."""
        vague: Reading | None = None
        aside: Reading | None = None
        for line in error_lines(self.lines):
            if line.line.number in judged:
                continue
            told.append(line)
            if line.tier == "warning" or (line.exception is not None and _is_pointer_line(line.exception)):
                continue
            if before is not None and before.match is None and line.line.number > before.number:
                continue
            if self._survived(line.line.number, deadly=True):
                continue
            for match in causes_of_line(line, after=not self._may_end(line)):
                cause = match.cause
                if self._survived(line.line.number, deadly=cause.deadly):
                    continue
                found = Reading(match, (line.exception,) if line.exception else (), line, _unknown_reason(told))
                if before is None and not self.failed and not self._counts_alone(line, cause):
                    aside = aside or (found if cause.aside and not cause.vague else None)
                elif not cause.vague:
                    return found
                else:
                    vague = vague or found
        return aside if aside is not None and vague is not None else vague

    def _counts_alone(self, line: ErrorLine, cause: Cause) -> bool:
        """Whether a line alone is proof of a failure."""
        if cause.aside:
            return ends_after(line.line.number, line.key, self.lines)
        return cause.deadly or not self._went_on(line)

    def _went_on(self, line: ErrorLine) -> bool:
        return goes_on_after(line.line.number, line.key, self.lines)

    def _cut_short(self) -> Diagnosis | None:
        """A traceback in which the log ends, unless that is of an exception which a server survives."""
        for exception in cut_short(self.lines):
            if is_survived(exception):
                continue
            if self.failed or self.ready is None or is_fatal(exception) or is_of_a_core(exception):
                message = exception.lead if exception.level in LOUD and not is_lead(exception.lead) else ""
                known = best_of([replace(exception, message=message, text=message)]) if message else None
                return known.diagnosis(self.settings, self.sites) if known else telling.cut_short(exception, message)
        return None

    def _waits(self) -> Diagnosis | None:
        """Of a start that may yet succeed it is only said that it waits."""
        found = waiting_for(self.log)
        if found is None or (self.ready is not None and found[1][-1].number < self.ready):
            return None
        starts = self.ready is None and not self.failed
        return hangs.waits(*found, Outcome.NOT_READY if starts else Outcome.FAILED)

    def _loops(self) -> Diagnosis | None:
        times, line = restarts(self.log)
        return telling.restart_loop(times, line) if line is not None else None

    def _process_gone(self, *, silent: bool) -> Diagnosis | None:
        """`silent`: whether the process that died is known to have logged nothing."""
        survived = 0 if self.whole else self.healthy or 0  # a server prints its figures once more as it shuts down
        return deaths.reported_exit(self.lines, after=survived, silent=silent)

    def _only_pointed_at(
        self, told: Sequence[ErrorLine], chains: Sequence[Sequence[LoggedException]]
    ) -> Diagnosis | None:
        """An exception that only points elsewhere is better than nothing; a survived one only if no process went on."""
        for chain in chains:
            if self._survived(chain[0].start, deadly=_ends_a_process(chain)):
                continue
            best = best_of([with_message(link, self.lines) for link in chain])
            if any(is_survived(link) or is_end_on_request(link) for link in chain):
                if self._ends_all(best, chain[0]):
                    return best.diagnosis(self.settings, self.sites) if best is not None else self._unknown(chain[0])
                continue
            if self.failed or _ends_a_process(chain) or (self.ready is None and not self._was_caught(chain)):
                return best.diagnosis(self.settings, self.sites) if best is not None else self._unknown(chain[0])
        for line in told:
            exception = line.exception
            if exception is None or line.tier == "warning":
                continue
            if is_end_on_request(exception) or is_survived(exception):
                continue
            if self._may_end(line) and (self.failed or not self._went_on(line)):
                return self._unknown(exception)
        return None

    def _ends_all(self, known: Reading | None, exception: LoggedException) -> bool:
        """Whether it is not survived, though it was caught or ended no more than a thread."""
        if known is not None and known.match is not None:
            cause = known.match.cause
            return cause.deadly or (self.ready is None and not cause.vague and cause.family in OF_HARDWARE)
        return self.ready is None and not exception.level and family_of(exception.text) in OF_HARDWARE

    def _may_end(self, line: ErrorLine) -> bool:
        """Whether a line can be the end of a process: a server that is ready survives its requests' errors."""
        if self.failed or self.ready is None:
            return True
        return line.line.number > self.ready and is_last_word(line, self.lines)

    def _unknown(self, exception: LoggedException) -> Diagnosis:
        return telling.unknown(exception, self.settings, site_of(exception, self.sites))

    def logged(self) -> Diagnosis | None:
        """If nothing else says why it failed: the first error that the engine's source knows, and that no later
        readiness took back."""
        for line in error_lines(self.lines):
            survived = self._survived(line.line.number, deadly=True) or self._went_on(line)
            if line.tier != "warning" and not survived:
                site = self.sites.find(line.line.text)
                if site is not None:
                    return telling.logged(line.line, site, self.settings)
        return None

    def _only_warned(self, told: Sequence[ErrorLine]) -> Diagnosis | None:
        """If nothing else explains the failure, a warning may; never in the log of an engine that serves."""
        if self.ready is not None:
            return None
        position = self.log.last(b"info ")
        last_progress = self.lines[position].number if position is not None else 0
        vague: Reading | None = None
        for line in told:
            if line.line.number < last_progress and not self.failed:
                continue  # the process that warned continued
            for match in causes_of(line.line.text, only="warning"):
                found = Reading(match, (), line)
                if found.specific:
                    return found.diagnosis(self.settings, self.sites)
                vague = vague or (found if match.cause.family != LOOP else None)
        return vague.diagnosis(self.settings, self.sites) if vague is not None else None

    def _only_gave_up(self, told: Sequence[ErrorLine]) -> Diagnosis | None:
        """If no row and no exception explains it, the first error after which its process is silent."""
        served = self.ready is not None and not self.failed
        asked = asked_to_end(self.log) if served else {}
        for at, line in enumerate(told):
            # After a requested shutdown, waiting readers log that the engine is dead.
            if line.line.number > asked.get(line.key, line.line.number) and is_of_a_reader(line):
                continue
            ends = is_last_word(line, self.lines) if served else is_giving_up(line.line.text)
            if line.tier != "warning" and ends and self._may_end(line) and (self.failed or not self._went_on(line)):
                line = _reason(told, at)
                after = next((other for other in self.lines if other.number > line.line.number), None)
                more = [after] if after is not None and line.line.text.endswith(":") else []
                return telling.said([line.line, *more], self.settings)
        return None

    def _only_errors(self, told: Sequence[ErrorLine]) -> Diagnosis | None:
        """Of a log in which nobody says that anything goes on, as launchers, drivers and quoted excerpts are: the first
        error that says of what it is."""
        levels = (undress(plain(line.text)).level for line in self.lines)
        if self.ready is not None or any(level in ("INFO", "NOTICE") for level in levels):
            return None
        about = (line for line in told if line.tier != "warning" and line.exception is None)
        line = next((line for line in about if family_of(line.line.text) is not None), None)
        return telling.said([line.line], self.settings) if line is not None else None


def _reason(told: Sequence[ErrorLine], at: int) -> ErrorLine:
    """Of the errors that lead to the one with which a process gives up, one right after the other, the first that says
    of what part it is."""
    first = at
    while (
        first
        and told[first].line.number - told[first - 1].line.number <= LINES_BETWEEN
        and told[first - 1].key == told[at].key
        and told[first - 1].tier != "warning"
    ):
        first -= 1
    return next((line for line in told[first:at] if family_of(line.line.text) is not None), told[at])


def _unknown_reason(told: Sequence[ErrorLine]) -> ErrorLine | None:
    """The error that no row knows, and that the last line follows from, which says nothing of what happened."""
    line = told[-1]
    if line.exception is not None or what_said(line.line.text) is not None or EVENT.match(line.line.text):
        return None
    reason = _reason(told, len(told) - 1)
    known = reason is line or what_said(reason.line.text) is None or causes_of_line(reason, after=False)
    return None if known else reason


def _ends_a_process(chain: Sequence[LoggedException]) -> bool:
    return any(is_fatal(link) for link in chain)


def _is_pointer_line(exception: LoggedException) -> bool:
    return is_pointer(exception) or is_aftermath(exception) or is_survived(exception)


def _told(fatal: Fatal, lines: Sequence[EvidenceLine]) -> LoggedException:
    """The first link of what the core reported, with its place in the log, where it usually is as well."""
    exception = first_exception(number_lines(fatal.traceback))
    if exception is None:
        text = f"{fatal.exception}: {fatal.message}"
        exception = LoggedException(fatal.exception, fatal.message, text, EvidenceLine(0, text))
    return telling.placed(exception, lines)
