"""`python -m appliance.engine_process.guard -- COMMAND`: runs a command and leaves nothing of it behind.

For an engine that is not ours. Its processes may start processes, and sessions of their own, and know nothing of the
front door. The guard is the parent of them all (orphans come to it, not to init), holds the pipe whose end says that
the front door has gone, and then ends every one of them. It imports nothing beyond the standard library, and ends as
the command did: with its status, or of the same signal.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import resource
import signal
import subprocess
import sys
import threading
import time

from appliance.engine_process.process_tree import descendants

PR_SET_PDEATHSIG = 1
PR_SET_CHILD_SUBREAPER = 36
TERM_GRACE_S = 1.5
# Between two looks at what is left: a killed process takes a moment to be gone.
AGAIN_S = 0.02
KILL_WITHIN_S = 10.0


def main() -> None:
    command = sys.argv[sys.argv.index("--") + 1 :]
    libc = ctypes.CDLL(None, use_errno=True)
    libc.prctl(PR_SET_CHILD_SUBREAPER, 1)
    # The group's signals are for the command; the guard ends when it has ended.
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGABRT):
        signal.signal(number, lambda *_: None)
    guard = os.getpid()

    def die_with_guard() -> None:
        libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != guard:
            os._exit(1)

    try:
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, preexec_fn=die_with_guard)
    except OSError as error:
        print(f"cannot start {command[0]}: {error.strerror}", file=sys.stderr)
        sys.exit(127)
    threading.Thread(target=_end_with_front_door, args=(process.pid,), daemon=True).start()
    status = _wait(process.pid)
    kill_all()
    if status < 0:
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # the command has left its core dump, if any; not another one
        if -status != signal.SIGKILL:
            signal.signal(-status, signal.SIG_DFL)
        os.kill(guard, -status)
    os._exit(status & 0xFF)


def _wait(pid: int) -> int:
    """The command's status, negative for a signal. Orphans that end meanwhile are reaped: as zombies they would fill
    the limit of processes in the end."""
    while True:
        ended, status = os.wait()
        if ended == pid:
            return os.waitstatus_to_exitcode(status)


def _end_with_front_door(pid: int) -> None:
    """stdin is a pipe that nobody writes to: it ends when the front door does."""
    while os.read(0, 4096):
        pass
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGTERM)
    time.sleep(TERM_GRACE_S)
    kill_all()
    os._exit(1)


def kill_all() -> None:
    """Every process that descends from this one; new ones may come meanwhile, so it looks until none is left."""
    deadline = time.monotonic() + KILL_WITHIN_S
    while (alive := descendants(os.getpid())) and time.monotonic() < deadline:
        for pid in alive:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(AGAIN_S)
        with contextlib.suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass


if __name__ == "__main__":
    main()
