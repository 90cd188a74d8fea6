"""Notices, line by line while a launch runs, that the engine has logged its final exception.

A failed engine does not always exit: a parent may wait for a child that is gone. Tracebacks of handled exceptions,
which a healthy start may contain, never count.
"""

from __future__ import annotations

import re

from appliance.diagnosis.dressing import plain, undress
from appliance.diagnosis.pointers import is_fatal, is_pointer, is_survived
from appliance.diagnosis.traceback_reader import LoggedException, TracebackReader
from appliance.protocol import EvidenceLine

CRASH = "Fatal Python error: "
# How a command line is refused, after which the program ends: `vllm serve: error: argument --dtype: ...`.
USAGE = ": error: "
REFUSED = re.compile(r"(?:vllm|sglang|ingot|\w{1,80}\.py)\b[\w .-]{0,40}: error: ")
MAX_STREAMS = 64


class FatalWatch:
    """Feed it every line of the log, in order. It answers once, with the first exception of the chain that ends the
    engine, when the last line of that chain's traceback has come; before and after that with None."""

    def __init__(self) -> None:
        self._reader = TracebackReader()
        self._chains: dict[str, LoggedException] = {}  # the first link of the chain that each stream is in
        self._raised: LoggedException | None = None  # the first that was not caught and survived
        self._answered = False

    def feed(self, number: int, text: str) -> LoggedException | None:
        if self._answered:
            return None
        exception = self._reader.feed(number, text)
        if exception is None:
            return self._last_word(number, text) if _is_last_word(text) else None
        first = self._chains.get(exception.key) if exception.link else None
        self._chains[exception.key] = first = first or exception
        if len(self._chains) > MAX_STREAMS:
            del self._chains[next(iter(self._chains))]
        if self._raised is None and not (is_pointer(first) or is_survived(first)):
            self._raised = first
        if not is_fatal(exception):
            return None
        return self._answer((self._raised or first) if is_pointer(first) else first)

    def _last_word(self, number: int, text: str) -> LoggedException:
        """Native code died under Python, which says so itself; or the command line was refused."""
        words = undress(plain(text)).words.rstrip()[:500]
        kind, _, message = words.partition(": ")
        return self._answer(LoggedException(kind, message, words, EvidenceLine(number, words), start=number))

    def _answer(self, exception: LoggedException) -> LoggedException:
        self._answered = True
        return exception


def _is_last_word(text: str) -> bool:
    """Written at the beginning of a line and through no logger: what a logger writes may hold a client's words."""
    if CRASH not in text and USAGE not in text:
        return False
    line = undress(plain(text))
    return not line.header and (line.words.startswith(CRASH) or REFUSED.match(line.words) is not None)
