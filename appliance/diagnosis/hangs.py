"""Why an engine hangs: from its processes' stacks if there are any, otherwise from its log."""

from __future__ import annotations

from collections.abc import Sequence

from appliance.diagnosis.causes.hang import Waiting
from appliance.diagnosis.deaths_without_exception import LAST_LINES
from appliance.diagnosis.stuck_processes import AGAIN, fix_of, in_words, stuck_processes, unplaced
from appliance.diagnosis.telling import shown
from appliance.protocol import Diagnosis, EvidenceLine, Fix, Outcome

# How the supervisor reports a stopped process.
STOPPED = "(SIGSTOP)"


def diagnose_hang(hang: str, stacks: str | None, lines: Sequence[EvidenceLine]) -> Diagnosis:
    """`hang` says why it counts as hung; `stacks` is what py-spy wrote of each process."""
    said = hang.rstrip(".")
    if STOPPED in hang:  # which is certain, wherever it was stopped
        return Diagnosis(
            summary=f"The engine hangs: {said}. Something outside the engine stopped it.",
            family="hang",
            cause="stopped",
            evidence=_last(lines),
            fix=Fix(
                text="Find out what stopped it (kill -STOP, Ctrl-Z in its terminal, a debugger, a paused container "
                "or a frozen control group), then start it again.",
            ),
        )
    stuck = stuck_processes(stacks or "")
    if stuck:
        place = stuck[0].place
        return Diagnosis(
            summary=f"The engine hangs: {said}. {in_words(stuck)}",
            family=place.family,
            cause=place.cause,
            evidence=_last(lines),
            fix=fix_of(stuck[0], stacks or ""),
        )
    return Diagnosis(
        summary=f"The engine hangs: {said}. {unplaced(stacks or '')}".rstrip(),
        family="hang",
        cause="no-progress",
        evidence=_last(lines),
        fix=Fix(text=AGAIN),
    )


def waits(waiting: Waiting, lines: Sequence[EvidenceLine], outcome: Outcome) -> Diagnosis:
    """From the log alone: `lines` are where a process says that it is waiting."""
    waits = f"at the end of the log it is waiting for {waiting.what}."
    return Diagnosis(
        summary=f"The engine is not ready: {waits}" if outcome is Outcome.NOT_READY else f"The engine hangs: {waits}",
        outcome=outcome,
        family=waiting.family,
        cause=waiting.cause,
        evidence=shown(lines),
        fix=Fix(text=waiting.fix, look=waiting.look),
    )


def _last(lines: Sequence[EvidenceLine]) -> tuple[EvidenceLine, ...]:
    return shown([line for line in lines[-LAST_LINES:] if line.text.strip()])
