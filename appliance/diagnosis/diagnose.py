"""From what a failed launch left behind to its cause and fix."""

from __future__ import annotations

import signal
from collections.abc import Sequence

from appliance.diagnosis.cause import Cause
from appliance.diagnosis.causes import CATALOGUE
from appliance.diagnosis.first_exception import LoggedException, first_exception
from appliance.diagnosis.log_text import number_lines
from appliance.protocol import Diagnosis, EvidenceLine, Fatal, Fix

MAX_TEXT = 500
LAST_LINES = 5

SIGNALS: dict[int, Diagnosis] = {
    signal.SIGKILL: Diagnosis(
        summary="The engine was killed from outside, most likely by the kernel because memory ran out.",
        family="memory",
        cause="killed",
        fix=Fix(
            text="Look for the kernel's out-of-memory line; if it is there, end what else uses much memory, or make "
            "the cache smaller with a shorter context.",
            command="dmesg | grep -i -e 'out of memory' -e oom",
        ),
    ),
    signal.SIGILL: Diagnosis(
        summary="The engine uses an instruction that this machine's processor does not have.",
        family="kernel-crash",
        cause="illegal-instruction",
        fix=Fix(text="Run it on a newer processor, or in a virtual machine that passes the host's processor through."),
    ),
    signal.SIGSEGV: Diagnosis(
        summary="Native code in the engine crashed (segmentation fault).",
        family="kernel-crash",
        cause="segmentation-fault",
        fix=Fix(
            text="Let the engine choose its backends by itself. If it happens again, send its log to support.",
            patch={"backends": None},
        ),
    ),
    signal.SIGBUS: Diagnosis(
        summary="A file of the model shrank or vanished while it was read, or native code crashed (bus error).",
        family="weights",
        cause="bus-error",
        fix=Fix(text="Check that the model's folder is complete and that nothing writes to it, then start again."),
    ),
}


def diagnose(
    lines: Sequence[EvidenceLine],
    *,
    exit_status: int | None = None,
    fatal: Fatal | None = None,
    hang: str | None = None,
) -> Diagnosis:
    """What ended the launch. `fatal` is the core's own account, which wins over the log; `exit_status` is as
    subprocess has it (negative for a signal); `hang` says why the engine counted as hung."""
    if hang is not None:
        return _hang(lines, hang)
    exception = _told(fatal, lines) if fatal is not None else first_exception(lines)
    if exception is not None:
        return _explain(exception)
    for line in lines:
        for cause in CATALOGUE:
            if "rror" in line.text and (groups := cause.match(line.text)) is not None:
                return _known(cause, groups, (line,))
    if exit_status is not None and -exit_status in SIGNALS:
        return SIGNALS[-exit_status]
    return _unknown(lines, exit_status)


def _told(fatal: Fatal, lines: Sequence[EvidenceLine]) -> LoggedException:
    """The first link of what the core told, with its place in the log, where it usually stands as well."""
    exception = first_exception(number_lines(fatal.traceback))
    if exception is None:
        text = f"{fatal.exception}: {fatal.message}"
        exception = LoggedException(fatal.exception, fatal.message, text, EvidenceLine(0, text))
    wanted = exception.line.text
    place = next((line for line in lines if line.text.endswith(wanted)), EvidenceLine(0, wanted))
    frame = exception.frame
    if frame is not None:
        within = [line for line in lines if line.number < place.number and line.text.endswith(frame.text)]
        frame = within[-1] if within else None
    return LoggedException(exception.type, exception.message, exception.text, place, frame)


def _explain(exception: LoggedException) -> Diagnosis:
    evidence = tuple(
        EvidenceLine(line.number, line.text[:MAX_TEXT])
        for line in (exception.frame, exception.line)
        if line is not None and line.number
    )
    for cause in CATALOGUE:
        if (groups := cause.match(exception.text)) is not None:
            return _known(cause, groups, evidence)
    return Diagnosis(
        summary=f"The engine ended with {exception.headline[:MAX_TEXT]}",
        evidence=evidence,
        fix=Fix(text="This cause is not known here. Send this launch's log to support."),
    )


def _known(cause: Cause, groups: dict[str, str], evidence: tuple[EvidenceLine, ...]) -> Diagnosis:
    return Diagnosis(
        summary=cause.summary_for(groups),
        family=cause.family,
        cause=cause.name,
        evidence=evidence,
        fix=cause.fix_for(groups),
    )


def _hang(lines: Sequence[EvidenceLine], hang: str) -> Diagnosis:
    return Diagnosis(
        summary=f"The engine hangs: {hang}.",
        family="hang",
        cause="no-progress",
        evidence=_last(lines),
        fix=Fix(text="Start it again. If it hangs again, send this launch's log and stacks.txt to support."),
    )


def _unknown(lines: Sequence[EvidenceLine], exit_status: int | None) -> Diagnosis:
    how = f" with exit status {exit_status}" if exit_status is not None and exit_status >= 0 else ""
    return Diagnosis(
        summary=f"The engine ended{how} and left no exception in its log.",
        evidence=_last(lines),
        fix=Fix(text="Read the end of the log. If it does not say why, start again and send the log to support."),
    )


def _last(lines: Sequence[EvidenceLine]) -> tuple[EvidenceLine, ...]:
    return tuple(EvidenceLine(line.number, line.text[:MAX_TEXT]) for line in lines[-LAST_LINES:])
