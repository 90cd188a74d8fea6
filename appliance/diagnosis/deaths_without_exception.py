"""Deaths without an exception: signals, exit statuses, the kernel's out-of-memory killer."""

from __future__ import annotations

import re
import signal
from collections.abc import Sequence

import msgspec

from appliance.diagnosis.causes.memory import LOOK_FOR_OOM, OOM_COMMAND
from appliance.diagnosis.dressing import plain, undress
from appliance.diagnosis.error_lines import QUIET
from appliance.diagnosis.telling import shown
from appliance.exit_status import KILLED_BY
from appliance.protocol import Diagnosis, EvidenceLine, Fix, ProcessEnd

LAST_LINES = 5
MAX_SAID = 240
# The part of the system log, in seconds around its end, that may say who killed a process.
BEFORE_S, AFTER_S = 600, 60
CONTAINER_SIGNAL = 128  # a container's exit status is this and the signal's number
# vLLM's report with exit codes; a negative one is the signal that killed the process, as in subprocess.
_EXIT_SIGNAL = re.compile(r"Failed core proc\(s\): \{[^}]{0,200}?: ?-(?P<signal>\d{1,2})\b")
# vLLM's reports without an exit code: the process was gone before it could be polled, or died while serving.
_PROCESS_GONE = re.compile(
    r"Failed core proc\(s\): \{\}|engine ?core (?:proc\S{0,80} )?(?:\S{1,80} )?(?:exited|died) unexpectedly"
    r"|Worker proc(?:ess)? \S{1,80} died unexpectedly",
    re.IGNORECASE,
)
# Launchers' reports of what they started: without a status, with a signal's number, and with its name, as Go has it.
_SHARD_GONE = re.compile(r"\bshard \d{1,4} crashed", re.IGNORECASE)
_SIGNALLED = re.compile(
    r"\bwas signaled to shutdown with signal (?P<number>\d{1,2})\b|\bterminated: signal: (?P<name>[a-z ]{4,30})"
)
_NAMES = {
    "killed": signal.SIGKILL, "terminated": signal.SIGTERM, "segmentation fault": signal.SIGSEGV,
    "aborted": signal.SIGABRT, "bus error": signal.SIGBUS, "illegal instruction": signal.SIGILL,
    "floating point exception": signal.SIGFPE,
}  # fmt: skip
_OOM_FIX = Fix(
    text="Give the machine or the container more memory, stop other programs that use a lot, or use a shorter context.",
    look=OOM_COMMAND,
)
_KILLED_FIX = Fix(text=LOOK_FOR_OOM, look=OOM_COMMAND)
_OWN_BACKENDS = Fix(
    text="Let the engine choose its backends. If it happens again, send its log to support.",
    patch={"backends": None},
)
_KILLED_SILENTLY = Diagnosis(
    summary=f"One of the engine's processes ended without an error message. It was probably killed: {KILLED_BY}.",
    family="memory",
    cause="killed",
    fix=_KILLED_FIX,
)
_KILLED_FROM_OUTSIDE = Diagnosis(
    summary="Killed with SIGKILL. No out-of-memory record found: somebody, or a service manager, probably ended it.",
    family="host",
    cause="killed-from-outside",
    fix=Fix(
        text="Find out who ended it: a person, a service manager, a job scheduler, or a program such as earlyoom. Then "
        "start it again.",
    ),
)
SIGNALS: dict[int, Diagnosis] = {
    signal.SIGKILL: Diagnosis(
        summary=f"Killed with SIGKILL: {KILLED_BY}.",
        family="memory",
        cause="killed",
        fix=_KILLED_FIX,
    ),
    signal.SIGILL: Diagnosis(
        summary="The engine uses an instruction that this CPU does not support.",
        family="kernel-crash",
        cause="illegal-instruction",
        fix=Fix(text="Use a newer CPU, or a virtual machine that passes the host CPU through."),
    ),
    signal.SIGSEGV: Diagnosis(
        summary="Segmentation fault in native code (SIGSEGV).",
        family="kernel-crash",
        cause="segmentation-fault",
        fix=_OWN_BACKENDS,
    ),
    signal.SIGFPE: Diagnosis(
        summary="Arithmetic error in native code (SIGFPE).",
        family="kernel-crash",
        cause="arithmetic-fault",
        fix=_OWN_BACKENDS,
    ),
    signal.SIGABRT: Diagnosis(
        summary="Native code aborted (SIGABRT).",
        family="kernel-crash",
        cause="aborted",
        fix=_OWN_BACKENDS,
    ),
    signal.SIGBUS: Diagnosis(
        summary="Bus error (SIGBUS): a model file shrank or vanished while it was being read, /dev/shm ran full, or "
        "native code crashed.",
        family="weights",
        cause="bus-error",
        fix=Fix(
            text="Check that the model folder is complete, that nothing writes to it, and that /dev/shm is large "
            "enough. Then start again.",
            look="df -h /dev/shm",
        ),
    ),
    signal.SIGTERM: Diagnosis(
        summary="The engine was asked to stop (SIGTERM).",
        family="host",
        cause="ended-on-request",
        fix=Fix(text="Find out who stopped it: a person, the service manager, or a probe that timed out."),
    ),
}


def was_put_down(died: ProcessEnd, lines: Sequence[EvidenceLine]) -> bool:
    """Whether the engine itself killed that process, as it cleaned up after a failure: vLLM's server does so with a
    core that takes its time. The failure is the cause, though its process may end later."""
    own = re.compile(rf"force killing .{{0,80}}\bpid {died.pid}\b")
    return any("force killing" in line.text and own.search(line.text) for line in lines)


def signal_of(exit_status: int | None) -> int | None:
    """The signal that a process, or a container's first process, died of."""
    if exit_status is None:
        return None
    if exit_status < 0:
        return -exit_status
    number = exit_status - CONTAINER_SIGNAL
    return number if number in SIGNALS else None


def by_exit_status(exit_status: int | None, lines: Sequence[EvidenceLine]) -> Diagnosis | None:
    """None where the status does not say. Nothing in the log shows a signal; only an abort is announced there."""
    number = signal_of(exit_status)
    if number is None or number not in SIGNALS:
        return None
    evidence = _last(lines) if number == signal.SIGABRT else ()
    return msgspec.structs.replace(SIGNALS[number], evidence=evidence)


def by_death(died: ProcessEnd | None, *, several: bool = False) -> Diagnosis | None:
    """Of the process that ended first, where a signal ended it; None where that does not explain it. `several`: others
    ended after it."""
    if died is None or died.status is None or -died.status not in SIGNALS:
        return None
    found = SIGNALS[-died.status]
    if died.status == -signal.SIGKILL and died.out_of_memory is False:
        found = _killed_from_outside(died.time)
    return msgspec.structs.replace(found, summary=f"{_ended(died, several=several)}. {found.summary}")


def _killed_from_outside(time: float) -> Diagnosis:
    """With the system log of that moment, however much later it is read."""
    assert _KILLED_FROM_OUTSIDE.fix is not None
    look = f"journalctl --since @{time - BEFORE_S:.0f} --until @{time + AFTER_S:.0f} | grep -i -e oom -e kill"
    fix = msgspec.structs.replace(_KILLED_FROM_OUTSIDE.fix, look=look)
    return msgspec.structs.replace(_KILLED_FROM_OUTSIDE, fix=fix)


def lines_of(died: ProcessEnd, lines: Sequence[EvidenceLine]) -> list[EvidenceLine]:
    """Those that are no aftermath of its end. Native code that crashes may leave lines that are read a moment later;
    they bear no other process's name."""
    quiet = died.status == -signal.SIGKILL
    return [
        line
        for line in lines
        if line.number <= died.line or not (quiet or _is_another(died, undress(plain(line.text)).key))
    ]


def _is_another(died: ProcessEnd, key: str) -> bool:
    return bool(key) and str(died.pid) not in re.findall(r"\d+", key)


def _named(died: ProcessEnd) -> str:
    return f"{died.name[:1].upper()}{died.name[1:]} (process {died.pid})"


def _ended(died: ProcessEnd, *, several: bool) -> str:
    return f"{_named(died)} ended{' first' if several else ''}"


def reported_exit(lines: Sequence[EvidenceLine], *, after: int, silent: bool) -> Diagnosis | None:
    """What another process reports, later than line number `after`, of one that died and logged nothing itself. A
    report without a status proves that only in a log with lines of the engine core before it, or where the caller knows
    it (`silent`)."""
    for line in lines:
        silent = silent or line.text.startswith("(EngineCore")
        if line.number <= after:
            continue
        gone = _SHARD_GONE.search(line.text) or (silent and _PROCESS_GONE.search(line.text))
        if gone and undress(plain(line.text)).level not in QUIET:
            return _with_report(_KILLED_SILENTLY, line)
        ended = _SIGNALLED.search(line.text)
        number = (int(ended["number"] or 0) or _NAMES.get(ended["name"].strip())) if ended is not None else None
        if number in SIGNALS:
            return _with_report(SIGNALS[number], line)
        status = _EXIT_SIGNAL.search(line.text) if "Failed core proc" in line.text else None
        if status is not None and int(status["signal"]) in SIGNALS:
            return msgspec.structs.replace(SIGNALS[int(status["signal"])], evidence=shown([line]))
    return None


def _with_report(found: Diagnosis, line: EvidenceLine) -> Diagnosis:
    said = undress(plain(line.text)).words.strip()[:MAX_SAID]
    return msgspec.structs.replace(found, summary=f"{found.summary} The log says: {said}", evidence=shown([line]))


def killed_by_kernel(record: str, died: ProcessEnd | None = None) -> Diagnosis:
    """`record` is the line in the kernel log, or its counter."""
    said = " ".join(record.split())[:300]
    whom = _named(died) if died is not None and died.status == -signal.SIGKILL else "the engine"
    return Diagnosis(
        summary=f"The kernel killed {whom} because memory ran out: {said}",
        family="memory",
        cause="oom-killed",
        fix=_OOM_FIX,
    )


def without_a_word(
    lines: Sequence[EvidenceLine], exit_status: int | None, died: ProcessEnd | None = None, *, several: bool = False
) -> Diagnosis:
    status = died.status if died is not None else exit_status
    how = f" with exit status {status}" if status is not None and status >= 0 else ""
    who = _ended(died, several=several) + ("," if several else "") if died is not None else "The engine ended"
    return Diagnosis(
        summary=f"{who}{how}, with no exception in its log.",
        evidence=_last(lines),
        fix=Fix(text="Read the end of the log. If that does not explain it, start again, and send the log to support."),
    )


def _last(lines: Sequence[EvidenceLine]) -> tuple[EvidenceLine, ...]:
    return shown([line for line in lines[-LAST_LINES:] if line.text.strip()])
