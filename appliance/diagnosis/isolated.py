"""A diagnosis in a process of its own, with a deadline: no log can hold up whoever asks for it.

Python's pattern matching cannot be interrupted and lets no other thread run, so a thread would not do.
"""

from __future__ import annotations

import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec

from appliance.core_protocol import Fatal
from appliance.protocol import Diagnosis, EvidenceLine, Fix, ProcessEnd

WORKER = (sys.executable, "-m", "appliance.diagnosis.worker")
# A megabyte takes 10 to 50 ms.
BUDGET_S = 10.0
S_PER_MB = 0.1
MOST_S = 60.0
TAIL_BYTES = 64 << 10
MAX_EVIDENCE = 5
MAX_TEXT = 500
ERROR_WORDS = ("error", "exception", "fatal", "killed", "failed", "abort", "signal", "xid")


class Circumstances(msgspec.Struct, frozen=True, kw_only=True):
    """What is known of a failed launch besides its log: see `diagnose`. Of a hung engine's log the lines after
    `last_line` do not count, since it wrote them as it was ended."""

    exit_status: int | None = None
    fatal: Fatal | None = None
    hang: str | None = None
    killed_by_kernel: str | None = None
    died: ProcessEnd | None = None
    several_ended: bool = False
    stacks: str | None = None
    profile: dict[str, Any] | None = None
    model: str | None = None
    last_line: int | None = None


class Answer(msgspec.Struct, frozen=True, kw_only=True):
    """`headline` is the first exception in one line, None where there is none. `complete`: the log was read."""

    headline: str | None
    diagnosis: Diagnosis
    complete: bool = True


def diagnose_isolated(log: Path, known: Circumstances, budget_s: float | None = None) -> Answer:
    """Blocking, for at most `budget_s` seconds; by default as many as a log of this size may take."""
    limit_s = budget_s if budget_s is not None else budget_for(log)
    try:
        done = subprocess.run(
            [*WORKER, str(log)], input=msgspec.json.encode(known), capture_output=True, timeout=limit_s, check=False
        )
    except subprocess.TimeoutExpired:
        return without_reading(log, known, f"within {limit_s:,.0f} s")
    except OSError:
        # No process can be had, which may be why the engine failed. Every pattern is bounded: this ends soon.
        from appliance.diagnosis.worker import answer

        return answer(log, known)
    try:
        return msgspec.json.decode(done.stdout, type=Answer)
    except msgspec.DecodeError:
        sys.stderr.write(done.stderr.decode(errors="replace"))
        return without_reading(log, known, f"(the diagnosis ended with status {done.returncode})")


def budget_for(log: Path) -> float:
    """Seconds for a log of this size."""
    try:
        megabytes = log.stat().st_size / (1 << 20)
    except OSError:
        megabytes = 0.0
    return min(BUDGET_S + S_PER_MB * megabytes, MOST_S)


def without_reading(log: Path, known: Circumstances, why: str) -> Answer:
    """What can be said where the log was not analysed: by the status, or else with its last errors."""
    from appliance.diagnosis import deaths_without_exception as deaths  # late: almost never needed

    headline = f"{known.fatal.exception}: {known.fatal.message}".splitlines()[0] if known.fatal else None
    evidence = last_errors(log)
    if known.killed_by_kernel is not None:
        found: Diagnosis | None = deaths.killed_by_kernel(known.killed_by_kernel, known.died)
    else:
        found = deaths.by_death(known.died, several=known.several_ended) or deaths.by_exit_status(
            known.exit_status, evidence
        )
    if found is None:
        last = headline or known.hang or (evidence[-1].text if evidence else "")
        found = Diagnosis(
            summary=f"The engine failed, and its log could not be analysed {why}."
            + (f" Last error: {last}" if last else ""),
            evidence=tuple(evidence),
            fix=Fix(
                text="Read the end of the log. The command below analyses it without a time limit.",
                look=shlex.join(("ingot", "diagnose", str(log))),
            ),
        )
    return Answer(headline=headline, diagnosis=found, complete=False)


def last_errors(log: Path) -> list[EvidenceLine]:
    """The last lines that look like errors, or else the last lines, with their numbers; found without a pattern."""
    try:
        with log.open("rb") as file:
            size = file.seek(0, 2)
            start = max(size - TAIL_BYTES, 0)
            file.seek(0)
            number, left = 1, start
            while left > 0 and (piece := file.read(min(left, 1 << 20))):
                number += piece.count(b"\n")
                left -= len(piece)
            texts = file.read().decode(errors="replace").split("\n")
    except OSError:
        return []
    lines = [EvidenceLine(number + at, text.strip()[:MAX_TEXT]) for at, text in enumerate(texts) if text.strip()]
    errors = [line for line in lines if any(word in line.text.lower() for word in ERROR_WORDS)]
    return (errors or lines)[-MAX_EVIDENCE:]
