"""What a log tells without any diagnosis: its last exception, as `grep Error | tail` shows it."""

from __future__ import annotations

import re
from collections.abc import Sequence

EXCEPTION = re.compile(r"(?:^|[\s.])[A-Za-z]{0,60}(?:Error|Exception)(?:: |$)|: error: ")
SURVIVED = re.compile(r"\b(?:WARNING|INFO|DEBUG)\b")
MAX_FURTHER = 5  # lines of its message
# What is none of them: another entry of the log, or nothing.
ENTRY = re.compile(r"^\s*$|^\(|^\[|\b(?:INFO|WARNING|ERROR|DEBUG)\b|^Traceback|^\S{0,40}\d\d:\d\d")


def last_exception(lines: Sequence[str]) -> str:
    """The last line that tells an exception, with the further lines of its message; empty where there is none."""
    at = next((at for at in reversed(range(len(lines))) if _tells(lines[at])), None)
    if at is None:
        return ""
    further = lines[at + 1 : at + 1 + MAX_FURTHER]
    end = next((number for number, line in enumerate(further) if ENTRY.search(line)), len(further))
    return "\n".join([lines[at], *further[:end]])


def _tells(line: str) -> bool:
    return EXCEPTION.search(line) is not None and SURVIVED.search(line) is None
