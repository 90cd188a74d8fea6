"""A process of the engine in a process group of its own: started, waited for, and ended with everything it started."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO

from appliance.engine_process.process_tree import descendants, state_of


class Child:
    """stdout and stderr come through one pipe, in the order they were written; stdin is a pipe nobody writes to, whose
    end tells the child that we are gone."""

    def __init__(self, command: Sequence[str], environment: Mapping[str, str]) -> None:
        """Raises OSError if there is no such program, or no process can be created."""
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
    def has_ended(self) -> bool:
        """Of one that nobody waits for yet. Its number stays its own."""
        if self._process.returncode is not None:
            return True
        return os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None

    @property
    def exited(self) -> bool:
        """Whether the end of the process has been seen. Only while somebody waits for it."""
        return self._exited is not None and self._exited.done()

    def stopped(self) -> str | None:
        """Which process of the engine somebody has stopped (SIGSTOP), in words; None where all of them run."""
        for pid in (self.pid, *descendants(self.pid)):
            if state_of(pid) == "T":
                return f"process {pid}{_named(pid)}"
        return None

    async def ended_within(self, timeout_s: float) -> bool:
        done, _ = await asyncio.wait({asyncio.ensure_future(self.wait())}, timeout=timeout_s)
        return bool(done)

    async def end(self, grace_s: float, first: signal.Signals = signal.SIGTERM) -> int:
        """Ask the group to end, and make it end after `grace_s` seconds."""
        family = self._family()  # before their parents are gone and they can no longer be found
        self.send(signal.SIGCONT)  # a stopped process would not hear the next one
        self.send(first)
        if not await self.ended_within(grace_s):
            self.send(signal.SIGKILL)
        status = await self.wait()
        _kill(family)
        return status

    def kill(self) -> int:
        """The same without an event loop and without asking."""
        family = self._family()
        self.send(signal.SIGKILL)
        status = self._process.wait()
        _kill(family)
        return status

    def _family(self) -> list[int]:
        """Handles of all that it started; those of its group are reached without. Empty where not even a file can be
        opened any more: it must end nevertheless."""
        if self._process.returncode is not None:  # the number may be another process's by now
            return []
        try:
            return _handles(descendants(self.pid))
        except OSError:
            return []

    def _reap(self, loop: asyncio.AbstractEventLoop, exited: asyncio.Future[int]) -> None:
        # Seen dead but not yet reaped, the leader still holds the group's id: what it left behind can be killed safely.
        with contextlib.suppress(ChildProcessError):  # `kill` has reaped it
            os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOWAIT)
        self.send(signal.SIGKILL)
        status = self._process.wait()
        with contextlib.suppress(RuntimeError):  # the loop was closed meanwhile: nothing waits any more
            loop.call_soon_threadsafe(exited.set_result, status)


def _named(pid: int) -> str:
    try:
        return f" ({Path(f'/proc/{pid}/comm').read_text(errors='replace').strip()})"
    except OSError:  # it ended meanwhile
        return ""


def _handles(pids: Sequence[int]) -> list[int]:
    """Descriptors of processes: a number may mean another process by the time it is used."""
    found: list[int] = []
    for pid in pids:
        with contextlib.suppress(OSError):
            found.append(os.pidfd_open(pid))
    return found


def _kill(handles: Sequence[int]) -> None:
    """Whoever left the group for a session of their own, where no signal to the group reaches."""
    for handle in handles:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            signal.pidfd_send_signal(handle, signal.SIGKILL)
        os.close(handle)
