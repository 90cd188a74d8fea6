"""Notices, line by line while an engine starts, the first line of its log that reports an error.

It may be survived: this is for a person who waits, and proves nothing. The end of a launch is `fatal_watch`'s.
"""

from __future__ import annotations

from appliance.diagnosis.error_lines import error_line
from appliance.protocol import EvidenceLine

# A line without any of these is passed over without being read.
WORDS = ("ERROR", "CRITICAL", "FATAL", "Error: ", "Exception: ")
HEADING = "Traceback (most recent call last)"
MAX_TEXT = 500


class FirstError:
    """Feed it every line of the log, in order. It answers once."""

    def __init__(self) -> None:
        self._answered = False

    def feed(self, number: int, text: str) -> EvidenceLine | None:
        if self._answered or HEADING in text or not any(word in text for word in WORDS):
            return None
        line = EvidenceLine(number, text)
        found = error_line(line, [line])
        if found is None or found.tier == "warning" or (found.tier == "bare" and found.exception is None):
            return None
        self._answered = True
        return EvidenceLine(number, found.line.text[:MAX_TEXT])
