"""`make diagnosis-windows`: no part of a healthy log may look like a failure.

Windows of a few lines, each beginning at a random one, of the healthy logs beside the project and in the folders named
on the command line.
"""

from __future__ import annotations

import json
import random
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from appliance.diagnosis.diagnose import diagnose
from appliance.diagnosis.log_text import number_lines
from appliance.protocol import Outcome
from tests.diagnosis.shared_logs import HEALTHY_SHARED

WINDOWS = 2000
LINES = 20
SEED = 17


def windows(texts: Sequence[str]) -> Iterator[str]:
    draw = random.Random(SEED)
    logs = [text.splitlines() for text in texts]
    for _ in range(WINDOWS):
        lines = draw.choices(logs, weights=[len(log) for log in logs])[0]
        begin = draw.randrange(max(1, len(lines) - LINES + 1))
        yield "\n".join(lines[begin : begin + LINES])


def main(folders: Sequence[str]) -> None:
    paths = [*HEALTHY_SHARED, *(path for folder in folders for path in sorted(Path(folder).glob("h*.log")))]
    if not paths:
        sys.exit("There are no healthy logs. INGOT_STARTUP_LOGS names a folder with an index.json.")
    flagged = 0
    for window in windows([path.read_text(errors="replace") for path in paths]):
        found = diagnose(number_lines(window))
        if found.outcome is Outcome.FAILED:
            flagged += 1
            print(f"{found.family}: {found.summary}\n{window}\n")
    print(json.dumps({"false-failures": {"value": flagged, "goal": 0, "ok": flagged == 0}, "logs": len(paths)}))
    sys.exit(0 if flagged == 0 else 1)


if __name__ == "__main__":
    main(sys.argv[1:])
