"""Whether the kernel killed a process because memory ran out."""

from __future__ import annotations

import re
from contextlib import suppress
from pathlib import Path
from typing import Final

from appliance.protocol import Finding, Fix, Severity

OUT_OF_MEMORY: Final = "out of memory"
NO_MEMORY: Final = Finding(
    id="out-of-memory",
    severity=Severity.ERROR,
    message="The machine ran out of memory and the kernel killed the engine.",
    fix=Fix(text="End other programs, or choose a profile that needs less memory.", look="free -g"),
)
KILLED: Final = Finding(
    id="engine-killed",
    severity=Severity.ERROR,
    message="The engine was killed with SIGKILL. No out-of-memory record found: somebody, or a service manager, "
    "probably ended it. Nothing restarts it automatically.",
    fix=Fix(
        text="Start the engine again. If that keeps happening, find out who ends it, or look for an out-of-memory line "
        "in the kernel log.",
        command="dmesg -T | grep -i -e 'out of memory' -e oom",
    ),
)

DIED: Final = Finding(
    id="engine-died",
    severity=Severity.ERROR,
    message="The engine ended without being stopped. It had been started before this console, so its exit status is "
    "unknown. No out-of-memory record found: it crashed, or somebody, or a service manager, killed it. Nothing "
    "restarts it automatically.",
    fix=Fix(
        text="Start the engine again. If that keeps happening, look for a crash or an out-of-memory line in the kernel "
        "log.",
        command="dmesg -T | grep -i -e segfault -e 'out of memory' -e oom",
    ),
)


def memory_kills() -> int:
    """How many processes the kernel has killed because memory ran out since boot, in and outside containers. If the
    count rose when a process was killed, that is the best evidence available without root."""
    with suppress(OSError):
        found = re.search(r"^oom_kill (\d+)$", Path("/proc/vmstat").read_text(), re.M)
        return int(found[1]) if found else 0
    return 0
