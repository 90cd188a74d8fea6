"""`make diagnosis-score`: the diagnosis against real start logs whose causes are known.

The logs are no part of the project: they lie beside it, or where INGOT_STARTUP_LOGS says.
"""

from __future__ import annotations

import json
import re
import sys
import time
from collections.abc import Iterable
from typing import Any, NamedTuple

from rich.console import Console
from rich.table import Table

from appliance.diagnosis.diagnose import diagnose
from appliance.diagnosis.log_text import number_lines
from appliance.protocol import Diagnosis, Outcome
from tests.diagnosis.last_exception import last_exception
from tests.diagnosis.shared_logs import FOLDER, entries

GOAL_SHARE = 0.95
GOAL_MS_PER_MB = 50.0
TIMED_BYTES = 4 << 20
WORD = re.compile(r"[a-z0-9]+")


# So much of the end of its decisive line makes a log's failure known.
TELLING_WORDS = 12
TOLD_SHARE = 0.7


class Row(NamedTuple):
    """`signature` is the line that, by its label, tells the cause; `last` the log's last exception."""

    file: str
    expected: str | None  # None of a healthy log
    accepted: tuple[str, ...]
    found: Diagnosis
    signature: str = ""
    last: str = ""

    @property
    def right(self) -> bool:
        """The family, and a fix that can be followed; of a healthy log no failure."""
        if self.expected is None:
            return self.found.outcome in (Outcome.SERVES, Outcome.NOT_READY) and self.found.fix is None
        return self.found.family in self.accepted and self.found.fix is not None

    @property
    def tells(self) -> bool:
        """Whether summary and evidence have the decisive line."""
        return _has(" ".join([self.found.summary, *(line.text for line in self.found.evidence)]), self.signature)

    @property
    def last_tells(self) -> bool:
        """Whether the last exception is the decisive line."""
        return _has(self.last, self.signature)


def _has(text: str, signature: str) -> bool:
    telling = WORD.findall(signature.lower())[-TELLING_WORDS:]
    said = set(WORD.findall(text.lower()))
    return sum(word in said for word in telling) >= TOLD_SHARE * len(telling)


def score(index: Iterable[dict[str, Any]]) -> list[Row]:
    rows = []
    for entry in index:
        text = (FOLDER / entry["file"]).read_text(errors="replace")
        found = diagnose(number_lines(text))
        expected = entry["category"] if entry["expect"] == "failure" else None
        last = last_exception(text.splitlines())
        rows.append(Row(entry["file"], expected, tuple(entry["accept"]), found, entry.get("signature") or "", last))
    return rows


def milliseconds_per_megabyte(index: Iterable[dict[str, Any]]) -> float:
    """Of one log that holds them all, over and over: the processor's time, the least of three."""
    text = "\n".join((FOLDER / entry["file"]).read_text(errors="replace") for entry in index)
    text *= TIMED_BYTES // len(text) + 1
    times = []
    for _ in range(3):
        began = time.process_time()
        diagnose(number_lines(text))
        times.append(time.process_time() - began)
    return min(times) * 1000 / (len(text) / (1 << 20))


def show(rows: Iterable[Row]) -> None:
    table = Table("", "log", "expected", "family", "cause", "to do")
    for row in rows:
        fix = row.found.fix.text if row.found.fix else ""
        table.add_row(
            "ok" if row.right else "[bold red]wrong",
            row.file,
            row.expected or "healthy",
            row.found.family or "-",
            row.found.cause or "-",
            fix if len(fix) < 60 else fix[:57] + "...",
        )
    Console(width=190).print(table)


def main() -> None:
    index = entries()
    if not index:
        sys.exit(
            f"There are no logs to judge by in {FOLDER}. INGOT_STARTUP_LOGS names another folder with an index.json."
        )
    rows = score(index)
    show(rows)
    failures = [row for row in rows if row.expected is not None]
    healthy = [row for row in rows if row.expected is None]
    share = sum(row.right for row in failures) / max(len(failures), 1)
    silent = sum(row.right for row in healthy)
    speed = milliseconds_per_megabyte(index)
    signed = [row for row in failures if row.signature]
    print(
        f"Of {len(signed)} failures the decisive line is told by Ingot in {sum(row.tells for row in signed)}, and by "
        f"the log's last exception, which names no family and no fix, in {sum(row.last_tells for row in signed)}."
    )
    figures: dict[str, dict[str, Any]] = {
        "failures-told-right": {"value": round(share, 4), "goal": GOAL_SHARE, "ok": share >= GOAL_SHARE},
        "healthy-silent": {"value": silent, "goal": len(healthy), "ok": silent == len(healthy)},
        "ms-per-megabyte": {"value": round(speed, 1), "goal": GOAL_MS_PER_MB, "ok": speed <= GOAL_MS_PER_MB},
    }
    print(json.dumps(figures))
    sys.exit(0 if all(figure["ok"] for figure in figures.values()) else 1)


if __name__ == "__main__":
    main()
