"""Runs `ingot serve` as a child process, or takes over one that already runs on this state folder.

The child's own output goes to a file, not a pipe: an engine outlives a console that was killed, and the next console
finds both the engine (by the name in its lock file) and what it wrote.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
import time
from collections import deque
from collections.abc import Callable, Coroutine, Mapping, Sequence
from pathlib import Path
from typing import Any

import psutil

from appliance.home import Home
from appliance.supervisor.deadlines import STOPPED_WITHIN_S
from appliance.supervisor.lock import Owner, is_held, read_owner
from console.engine_control.base import EngineControlError, EngineStatus

STOP_WITHIN_S = STOPPED_WITHIN_S
"""The front door drains and ends its engine within this time, or it is killed."""


def serve_command(host: str, port: int) -> list[str]:
    return [sys.executable, "-m", "appliance.cli", "serve", "--host", host, "--port", str(port)]


class ProcessControl:
    kind = "process"

    def __init__(self, home: Home, command: Sequence[str], environ: Mapping[str, str] = os.environ) -> None:
        self._home = home
        self._command = list(command)
        self._environ = {**environ, "INGOT_HOME": str(home.root), "INGOT_MODELS": str(home.models)}
        self._one_at_a_time = asyncio.Lock()
        self._child: asyncio.subprocess.Process | None = None
        self._started: float | None = None
        self._killed = False

    @property
    def output(self) -> Path:
        """What the present or last child wrote itself; what the one before it wrote is kept beside it."""
        return self._home.root / "serve.log"

    async def status(self) -> EngineStatus:
        if self._child is not None and self._child.returncode is None:
            return EngineStatus(running=True, who=f"process {self._child.pid}", since=self._started, url=self._url())
        adopted = self._adopted()
        if adopted is not None:
            return EngineStatus(running=True, who=f"process {adopted.pid}", since=adopted.started, url=self._url())
        if self._child is None:
            return EngineStatus(running=False)
        code = self._child.returncode
        assert code is not None
        asked = self._killed or code == -signal.SIGTERM
        return EngineStatus(running=False, ended=how_it_ended(code), exit_code=0 if asked else code)

    async def start(self) -> None:
        async with self._one_at_a_time:
            await self._start()

    async def stop(self) -> None:
        async with self._one_at_a_time:
            await self._stop()

    async def restart(self) -> None:
        async with self._one_at_a_time:
            await self._stop()
            await self._start()

    async def logs(self, tail: int = 200) -> list[str]:
        try:
            with self.output.open(encoding="utf-8", errors="replace") as file:
                return [line.rstrip("\n") for line in deque(file, maxlen=tail)]
        except FileNotFoundError:
            return []

    async def close(self, *, keep_engine: bool = False) -> None:
        """The child ends with the console; an engine that was taken over was somebody else's and goes on."""
        if not keep_engine and self._child is not None and self._child.returncode is None:
            async with self._one_at_a_time:
                await self._stop()

    async def _start(self) -> None:
        if (await self.status()).running:
            return
        self._killed = False
        try:
            with contextlib.suppress(FileNotFoundError):
                self.output.replace(self.output.with_name("serve.log.1"))
            with self.output.open("wb") as output:
                self._child = await asyncio.create_subprocess_exec(
                    *self._command,
                    stdin=asyncio.subprocess.DEVNULL,
                    stdout=output,
                    stderr=asyncio.subprocess.STDOUT,
                    env=self._environ,
                    start_new_session=True,
                )
        except OSError as error:
            raise EngineControlError(
                f"The engine could not be started: {error}. Make {self._home.root} writable and look whether "
                f"{self._command[0]} is there."
            ) from error
        self._started = time.time()

    async def _stop(self) -> None:
        if self._child is not None and self._child.returncode is None:
            self._killed = True
            await _end(self._child.pid, self._child.wait(), os.killpg)
            return
        adopted = self._adopted()
        if adopted is not None:
            # Its group is whoever's started it, down to a whole terminal session; its core ends when it is gone.
            await _end(adopted.pid, asyncio.to_thread(_wait_for, adopted.pid), os.kill)

    def _adopted(self) -> Owner | None:
        """The `ingot serve` that holds this state folder. The name in the lock's file may be of a process long gone,
        whose number another has now: so the lock itself must be held, and by one that began before it was taken."""
        owner = read_owner(self._home.lock)
        if owner is None or not is_held(self._home.lock):
            return None
        try:
            process = psutil.Process(owner.pid)
            alive = process.status() != psutil.STATUS_ZOMBIE and process.create_time() <= owner.started + 1.0
        except psutil.NoSuchProcess:
            return None
        return owner if alive else None

    def _url(self) -> str | None:
        owner = read_owner(self._home.lock)
        if owner is None:
            return None
        host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(owner.host, owner.host)
        return f"http://[{host}]:{owner.port}" if ":" in host else f"http://{host}:{owner.port}"


def how_it_ended(code: int) -> str:
    if code >= 0:
        return f"exit code {code}"
    try:
        return f"killed by {signal.Signals(-code).name}"
    except ValueError:
        return f"killed by signal {-code}"


async def _end(pid: int, gone: Coroutine[Any, Any, object], kill: Callable[[int, int], None]) -> None:
    """SIGTERM to the front door, which ends its core; after `STOP_WITHIN_S` SIGKILL, sent with `kill`."""
    waiting = asyncio.create_task(gone)
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGTERM)
    done, _ = await asyncio.wait({waiting}, timeout=STOP_WITHIN_S)
    if not done:
        with contextlib.suppress(ProcessLookupError):
            kill(pid, signal.SIGKILL)
        await waiting


def _wait_for(pid: int) -> None:
    """Until a process that is not our child has ended; psutil polls."""
    try:
        psutil.Process(pid).wait()
    except psutil.NoSuchProcess:
        return
