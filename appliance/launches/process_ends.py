"""Which of a launch's processes ended first, and how: the others ended because of it."""

from __future__ import annotations

from collections.abc import Iterable

from appliance.exit_status import exit_in_words
from appliance.protocol import LaunchRecord, ProcessEnd

# A process that exits with an error this long before the engine's end was not missed.
LEADS_WITHIN_S = 60.0


def first_failure(record: LaunchRecord) -> ProcessEnd | None:
    """The first that ended by itself and in failure; None where none did, or the engine served after it."""
    ready = record.started + record.ready_after_s if record.ready_after_s is not None else record.started
    ends = [end for end in record.process_ends if not end.aftermath and end.status and end.time >= ready]
    last = record.process_ends[-1].time if record.process_ends else 0.0
    return next((end for end in ends if _by_signal(end) or last - end.time <= LEADS_WITHIN_S), None)


def _by_signal(end: ProcessEnd) -> bool:
    return end.status is not None and end.status < 0


def how(end: ProcessEnd) -> str:
    """In words, with the kernel's record if there is one."""
    if end.status is None:
        return "ended by Ingot" if end.by_ingot else "it is not known how"
    said = exit_in_words(end.status)
    if end.by_ingot:
        return f"{said}; ended by Ingot"
    if end.kernel:
        return f"{said}; {end.kernel}"
    return f"{said}; no out-of-memory record found" if end.out_of_memory is False else said


def in_order(ends: Iterable[ProcessEnd]) -> list[ProcessEnd]:
    return sorted(ends, key=lambda end: end.time)
