"""When each line of a launch's log was written, and when the first exception was."""

from __future__ import annotations

import re
import threading
import time
from pathlib import Path

from appliance.protocol import Diagnosis

LOOK_EVERY_S = 0.005
TRACEBACK = re.compile(r"Traceback \(most recent call last\):|Fatal Python error: ")
# An exception logged without its traceback: `ValueError: ...`, `vllm serve: error: ...`.
EXCEPTION = re.compile(r"^(?!.* (?:WARNING|INFO) ).*(?:(?:^|[\s.])[A-Za-z]+(?:Error|Exception): |: error: )")


class LogClock:
    """Follows a file that may not be there yet."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._lines: list[tuple[float, str]] = []
        self._closed = False
        self._thread = threading.Thread(target=self._follow, name="log", daemon=True)
        self._thread.start()

    @property
    def lines(self) -> list[str]:
        return [text for _, text in self._lines]

    def close(self) -> None:
        self._closed = True
        self._thread.join()

    def first_exception(self, diagnosis: Diagnosis | None) -> float | None:
        """When the log's first traceback began, or, of a failure that left none, its first line that tells an
        exception. None where nothing was said, as by a process that was killed. Tracebacks that a healthy start
        survives count as well: they could only make the time since then longer."""
        for pattern in (TRACEBACK, EXCEPTION):
            found = next((at for at, text in self._lines if pattern.search(text)), None)
            if found is not None:
                return found
        if diagnosis is not None and diagnosis.evidence:
            number = min(line.number for line in diagnosis.evidence)
            return self._lines[number - 1][0] if 0 < number <= len(self._lines) else None
        return None

    def _follow(self) -> None:
        rest, offset = b"", 0
        while not self._closed:
            try:
                with self._path.open("rb") as file:
                    file.seek(offset)
                    data = file.read()
            except FileNotFoundError:
                data = b""
            if data:
                now = time.time()
                offset += len(data)
                *lines, rest = (rest + data).split(b"\n")
                self._lines += [(now, line.decode(errors="replace")) for line in lines]
            time.sleep(LOOK_EVERY_S)
