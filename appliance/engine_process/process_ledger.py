"""Who of an engine's processes ended first, and how: each is watched from outside, since only its parent may ask.

A handle (pidfd) of a process becomes readable at its end. Its status then stands in /proc until its parent asks for it,
and in the handle after that (Linux 6.15).
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import select
import signal
import struct
import sys
import threading
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from appliance.engine_process.process_tree import command_of, descendants, statistics_of
from appliance.launches.process_names import PREFIX, TITLE, is_guard, name_of
from appliance.protocol import ProcessEnd

# How often new processes are looked for, and how seldom where there have been none for a while: with hundreds of
# threads a look takes tens of milliseconds. Ends are noticed at once.
LOOK_S, LOOK_LESS = 0.5, 1.2
MOST_S = 5.0
# How many failures are reported, and how many other ends: an engine that runs for months ends many helpers.
MAX_ENDS = 32
# Names are heard before their processes are found; a log may hold any number of them.
MAX_NAMES = 1024
# A command line is read again while its process may yet change it, but not for ever: reading it can block.
NAMED_WITHIN_S = 60.0
# A thread that reads about a process in uninterruptible sleep may not end.
CLOSE_S = 2.0
# From linux/pidfd.h: _IOWR(0xFF, 11, struct pidfd_info), its first version.
PIDFD_INFO_BYTES = 64
PIDFD_GET_INFO = (3 << 30) | (PIDFD_INFO_BYTES << 16) | (0xFF << 8) | 11
PIDFD_INFO_EXIT = 1 << 3
EXIT_CODE_AT = 60
STATUS_FIELD = 49  # of /proc/PID/stat, after the name
# Between the end of a process and its parent's question neither of the two may tell, for a moment.
TRIES, AGAIN_S = 10, 0.001
# Nobody sends these to the others when the main process has ended.
CRASHES = (-signal.SIGSEGV, -signal.SIGILL, -signal.SIGBUS, -signal.SIGFPE, -signal.SIGABRT)


@dataclass
class _Watched:
    pid: int
    handle: int
    order: int
    command: list[str]
    python: bool
    main: bool
    since: float
    line: int | None = None  # of the log, where its end was noticed before lines that came after it


class ProcessLedger:
    """Of the process `root` and all below it, in a thread. `tell` is called there with each end, in order. The main
    process is the first that is not the guard, and is called `main_name` unless the log calls it otherwise."""

    def __init__(self, root: int, tell: Callable[[ProcessEnd], None], main_name: str = "engine") -> None:
        self.main_end: ProcessEnd | None = None
        self._root = root
        self._tell = tell
        self._main_name = main_name
        self._lines = 0  # of the log, read so far
        self._watched: dict[int, _Watched] = {}  # by handle
        self._named: dict[int, str] = {}
        self._found = self._failures = self._others = 0
        self._main_seen = False
        self._by_itself: set[int] | None = None  # the processes that had ended before Ingot ended the rest
        self._closing = threading.Event()
        self._lock = threading.Lock()  # for the handles, and for the lines that came before their ends
        self._poll = select.epoll()
        self._wake, self._woken = os.pipe()
        self._poll.register(self._wake, select.EPOLLIN)
        self._thread = threading.Thread(target=self._run, name="process-ledger", daemon=True)
        self._thread.start()

    def heard(self, first: int, lines: Sequence[str]) -> None:
        """The next lines of the log, from number `first` on, in the thread that reads it. They may say what a process
        is called. A process that has ended by now did so before them: what its parent says of its death may be read
        sooner than this ledger's own thread gets to run."""
        with self._lock:
            for process in self._ended():
                process.line = first - 1 if process.line is None else process.line
            self._lines = first - 1 + len(lines)
        for line in lines:
            if line[:1] == "(" and (found := PREFIX.match(line)) is not None and len(self._named) < MAX_NAMES:
                self._named[int(found["pid"])] = found["name"]

    def expect_ends(self) -> None:
        """From here on Ingot ends what is left. What has ended by now did so by itself, even if the thread has yet to
        notice."""
        with self._lock:
            self._by_itself = {process.pid for process in self._ended()}

    def close(self) -> None:
        """Blocking, but not for long. Tells the ends that have come until now."""
        self._closing.set()
        with contextlib.suppress(OSError):  # the thread has ended, and closed the other end of the pipe
            os.write(self._woken, b"x")
        self._thread.join(CLOSE_S)
        os.close(self._woken)

    def _ended(self) -> list[_Watched]:
        """Those whose end is not told yet. With the lock held: a handle's number may be another's once it is closed."""
        if self._poll.closed:
            return []
        return [self._watched[handle] for handle, _ in self._poll.poll(0) if handle in self._watched]

    def _run(self) -> None:
        pause_s = LOOK_S
        try:
            while not self._closing.is_set():
                before = self._found
                self._attempt(self._look)
                if not self._attempt(lambda: self._collect(self._poll.poll(pause_s))):  # noqa: B023  called at once
                    self._closing.wait(pause_s)
                pause_s = LOOK_S if self._found > before else min(pause_s * LOOK_LESS, MOST_S)
            self._collect(self._poll.poll(0))
        finally:
            with self._lock:
                self._poll.close()
                for handle in (*self._watched, self._wake):
                    os.close(handle)

    def _attempt(self, work: Callable[[], None]) -> bool:
        """One process that cannot be read must not hide the ends of the others."""
        try:
            work()
        except Exception:  # noqa: BLE001  whatever it is, the thread goes on
            traceback.print_exc(file=sys.stderr)
            return False
        return True

    def _look(self) -> None:
        heard = list(self._named)
        known = {process.pid: process for process in self._watched.values()}
        for pid in (self._root, *descendants(self._root)):
            if (process := known.get(pid)) is None:
                self._watch(pid, command_of(pid))
            elif self._may_be_renamed(process) and (command := command_of(pid)):
                process.command, process.python = command, process.python or _runs_python(pid)
        for pid in {*heard} - {process.pid for process in self._watched.values()}:
            del self._named[pid]

    def _may_be_renamed(self, process: _Watched) -> bool:
        titled = process.command and TITLE.match(process.command[0])
        return not titled and process.pid not in self._named and time.monotonic() - process.since < NAMED_WITHIN_S

    def _watch(self, pid: int, command: list[str]) -> None:
        if is_guard(command):
            return
        try:
            handle = os.pidfd_open(pid)
        except OSError:  # it has ended, or no more files are to be had
            return
        main, self._main_seen = not self._main_seen, True
        self._found += 1
        process = _Watched(pid, handle, self._found, command, _runs_python(pid), main, since=time.monotonic())
        with self._lock:
            self._watched[handle] = process
            self._poll.register(handle, select.EPOLLIN)

    def _collect(self, events: list[tuple[int, int]]) -> None:
        now = time.time()
        ended = [self._watched[handle] for handle, _ in events if handle in self._watched]
        statuses = {process.pid: status_of_ended(process.pid, process.handle) for process in ended}
        for process in sorted(ended, key=lambda process: _rank(process, statuses[process.pid])):
            by_ingot = self._by_itself is not None and process.pid not in self._by_itself
            with self._lock:
                line = self._lines if process.line is None else process.line
                del self._watched[process.handle]
                os.close(process.handle)
            end = ProcessEnd(
                pid=process.pid,
                name=self._name(process),
                time=now,
                status=statuses[process.pid],
                line=line,
                aftermath=by_ingot or self.main_end is not None,
                by_ingot=by_ingot,
            )
            self.main_end = end if process.main else self.main_end
            if self._counts(process, end):
                self._tell(end)

    def _name(self, process: _Watched) -> str:
        return self._named.get(process.pid) or (self._main_name if process.main else name_of(process.command))

    def _counts(self, process: _Watched, end: ProcessEnd) -> bool:
        """Compilers and other helpers only if a signal ended them; and of very many, the first."""
        if process.main:
            return True
        failed = end.status != 0 and not end.aftermath
        if not process.python and not (failed and end.status is not None and end.status < 0):
            return False
        if failed:
            self._failures += 1
            return self._failures <= MAX_ENDS
        self._others += 1
        return self._others <= MAX_ENDS


def _rank(process: _Watched, status: int | None) -> tuple[int, int]:
    """Of several that were found at once: one that crashed, the main process, and those that were ended after it."""
    return (0 if status in CRASHES else 1 if process.main else 2), -process.order


def _runs_python(pid: int) -> bool:
    try:
        return "python" in os.path.basename(os.readlink(f"/proc/{pid}/exe"))
    except OSError:
        return False


def status_of_ended(pid: int, handle: int) -> int | None:
    """As subprocess has it; None where the kernel does not tell."""
    for _ in range(TRIES):
        fields = statistics_of(pid)
        if fields[0] == "Z":
            return os.waitstatus_to_exitcode(int(fields[STATUS_FIELD]))
        info = bytearray(struct.pack("Q", PIDFD_INFO_EXIT).ljust(PIDFD_INFO_BYTES, b"\0"))
        try:
            fcntl.ioctl(handle, PIDFD_GET_INFO, info)
        except OSError:  # an older kernel
            return None
        if struct.unpack_from("Q", info)[0] & PIDFD_INFO_EXIT:
            return os.waitstatus_to_exitcode(struct.unpack_from("i", info, EXIT_CODE_AT)[0])
        time.sleep(AGAIN_S)
    return None
