"""A process of the engine in a process group of its own: started, waited for, and ended with everything it started."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
import threading
from collections.abc import Mapping, Sequence
from typing import IO

EXIT_HINTS: dict[int, str] = {
    signal.SIGKILL: "nothing inside it can do that: most likely the kernel, out of memory, or a person",
    signal.SIGSEGV: "a crash in native code",
    signal.SIGBUS: "a crash in native code, or a file that shrank while it was mapped",
    signal.SIGABRT: "native code gave up; its last words are in the log",
    signal.SIGILL: "native code uses an instruction that this processor does not have",
    signal.SIGTERM: "somebody asked it to end",
    signal.SIGINT: "somebody asked it to end",
}


def exit_in_words(status: int) -> str:
    """`status` as subprocess has it: negative for a signal."""
    if status >= 0:
        return f"exit status {status}"
    number = -status
    hint = EXIT_HINTS.get(number)
    return f"killed by {signal.Signals(number).name}" + (f" ({hint})" if hint else "")


class Child:
    """stdout and stderr come through one pipe, in the order they were written; stdin is a pipe nobody writes to, whose
    end tells the child that we are gone."""

    def __init__(self, command: Sequence[str], environment: Mapping[str, str]) -> None:
        """Raises OSError when there is no such program, or no process left to be had."""
        self._process = subprocess.Popen(
            command,
            env=dict(environment),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            bufsize=0,
        )
        self._exited: asyncio.Future[int] | None = None

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def output(self) -> IO[bytes]:
        assert self._process.stdout is not None
        return self._process.stdout

    async def wait(self) -> int:
        """The exit status of the process itself. When this returns, every other process of its group is gone too."""
        if self._exited is None:
            loop = asyncio.get_running_loop()
            self._exited = loop.create_future()
            threading.Thread(target=self._reap, args=(loop, self._exited), name="child-wait", daemon=True).start()
        return await asyncio.shield(self._exited)

    def send(self, number: signal.Signals) -> None:
        """To the whole group. It is safe at any time: until `_reap` has read the status, no other group can have this
        id."""
        if self._process.returncode is None:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self.pid, number)

    @property
    def exited(self) -> bool:
        """Whether the end of the process has been seen. Only while somebody waits for it."""
        return self._exited is not None and self._exited.done()

    @property
    def stopped(self) -> bool:
        """Whether somebody has stopped the process (SIGSTOP, a debugger)."""
        import psutil  # late: only a silent process is looked at

        try:
            return psutil.Process(self.pid).status() in (psutil.STATUS_STOPPED, psutil.STATUS_TRACING_STOP)
        except psutil.NoSuchProcess:
            return False

    async def ended_within(self, timeout_s: float) -> bool:
        done, _ = await asyncio.wait({asyncio.ensure_future(self.wait())}, timeout=timeout_s)
        return bool(done)

    async def end(self, grace_s: float, first: signal.Signals = signal.SIGTERM) -> int:
        """Ask the group to end, and make it end after `grace_s` seconds."""
        self.send(signal.SIGCONT)  # a stopped process would not hear the next one
        self.send(first)
        if not await self.ended_within(grace_s):
            self.send(signal.SIGKILL)
        return await self.wait()

    def kill(self) -> int:
        """The same without an event loop and without asking."""
        self.send(signal.SIGKILL)
        return self._process.wait()

    def _reap(self, loop: asyncio.AbstractEventLoop, exited: asyncio.Future[int]) -> None:
        # Seen dead but not yet reaped, the leader still holds the group's id: what it left behind can be killed safely.
        os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOWAIT)
        self.send(signal.SIGKILL)
        status = self._process.wait()
        with contextlib.suppress(RuntimeError):  # the loop was closed meanwhile: nobody waits any more
            loop.call_soon_threadsafe(exited.set_result, status)
