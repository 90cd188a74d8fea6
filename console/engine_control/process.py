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
from collections.abc import AsyncGenerator, Callable, Coroutine, Mapping, Sequence
from pathlib import Path
from typing import Any

import psutil

from appliance.engine_process.deadlines import STOPPED_WITHIN_S
from appliance.exit_status import how_it_ended
from appliance.home import Home
from appliance.home_lock import Owner, is_held, read_owner
from appliance.protocol import Finding, Fix, Severity
from console.engine_control.base import TAIL_LINES, EngineControlError, EngineEvent, EngineStatus, OutputLine
from console.engine_control.ending import DIED, KILLED, NO_MEMORY, OUT_OF_MEMORY, memory_kills
from console.engine_control.written import WrittenLines

STOP_WITHIN_S = STOPPED_WITHIN_S
"""How long the front door may take to drain and end its engine before it is killed."""


LOOKS_EVERY_S = 0.2
"""How often to poll output and events."""


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
        self._taken_over: Owner | None = None
        """The engine of another console, or of nobody, that runs here or ran here last."""
        self._killed = False
        self._ended: EngineStatus | None = None
        self._memory_kills = 0
        self._previous = EngineStatus(running=False)
        """How the engine before the present one ended."""

    @property
    def output(self) -> Path:
        """What the present or last child wrote itself; what the one before it wrote is kept beside it."""
        return self._home.root / "serve.log"

    async def status(self) -> EngineStatus:
        if self._child is not None and self._child.returncode is None:
            self._memory_kills = memory_kills()
            return self._running(self._child.pid, self._started, self._started)
        adopted = self._adopted()
        if adopted is not None:
            self._memory_kills = memory_kills()
            # The file may hold what an earlier engine wrote, and this one write to a terminal.
            return self._running(adopted.pid, adopted.started, _created(adopted.pid))
        return self._last_end()

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

    async def follow(self, tail: int = TAIL_LINES) -> AsyncGenerator[OutputLine]:
        """The output goes to a file, which is read as it grows; each child has a new one."""
        lines = WrittenLines(self.output, tail)
        try:
            while True:
                new = await asyncio.to_thread(list, lines.new())
                for line in new:
                    yield line
                await asyncio.sleep(0 if new else LOOKS_EVERY_S)
        finally:
            lines.close()

    async def events(self) -> AsyncGenerator[EngineEvent]:
        """Poll its process: an adopted engine is not our child."""
        before = await self.status()
        while True:
            await asyncio.sleep(LOOKS_EVERY_S)
            now = await self.status()
            if now.who != before.who:
                if before.running:
                    yield _end_told(self._previous)
                if now.who:
                    yield EngineEvent(now.since or time.time(), "started")
            if not now.running and now.who and (before.running or now.who != before.who):
                yield _end_told(now)
            before = now

    async def close(self, *, keep_engine: bool = False) -> None:
        """End the child with the console; leave an adopted engine running."""
        if not keep_engine and self._child is not None and self._child.returncode is None:
            async with self._one_at_a_time:
                await self._stop()

    async def _start(self) -> None:
        if (await self.status()).running:
            return
        self._previous = self._last_end()
        self._killed = False
        self._taken_over = None
        try:
            with contextlib.suppress(FileNotFoundError):
                self.output.replace(self.output.with_name("serve.log.1"))
            self._started = time.time()  # later than all output of the child before it
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
                Finding(
                    id="engine-not-started",
                    severity=Severity.ERROR,
                    message=f"The engine could not be started: {error}.",
                    fix=Fix(text=f"Make {self._home.root} writable, and check that {self._command[0]} exists."),
                )
            ) from error
        self._ended = None
        self._memory_kills = memory_kills()

    async def _stop(self) -> None:
        if self._child is not None and self._child.returncode is None:
            self._killed = True
            await _end(self._child.pid, self._child.wait(), os.killpg)
            return
        adopted = self._adopted()
        if adopted is not None:
            self._killed = True
            # Its group is whoever's started it, down to a whole terminal session; its core ends when it is gone.
            await _end(adopted.pid, asyncio.to_thread(_wait_for, adopted.pid), os.kill)

    def _running(self, pid: int, since: float | None, output_since: float | None) -> EngineStatus:
        url = self._url()
        return EngineStatus(running=True, who=f"process {pid}", since=since, output_since=output_since, url=url)

    def _last_end(self) -> EngineStatus:
        """How the last engine ended, determined once: later kills on this machine are unrelated."""
        if self._ended is None:
            if self._taken_over is not None:
                self._ended = self._end_of_taken_over(self._taken_over)
            elif self._child is not None:
                self._ended = self._end_of_child(self._child)
        return self._ended or EngineStatus(running=False)

    def _end_of_child(self, child: asyncio.subprocess.Process) -> EngineStatus:
        code = child.returncode
        assert code is not None
        killed = code == -signal.SIGKILL and not self._killed
        out_of_memory = killed and memory_kills() > self._memory_kills
        return EngineStatus(
            running=False,
            who=f"process {child.pid}",
            since=self._started,
            output_since=self._started,
            ended=OUT_OF_MEMORY if out_of_memory else how_it_ended(code),
            exit_code=0 if self._killed or code == -signal.SIGTERM else code,
            out_of_memory=out_of_memory,
            problem=NO_MEMORY if out_of_memory else KILLED if killed else None,
        )

    def _end_of_taken_over(self, owner: Owner) -> EngineStatus:
        """It is not our child, so that nobody has its exit status. One that is stopped takes its name off the lock."""
        died = not self._killed and read_owner(self._home.lock) == owner
        out_of_memory = died and memory_kills() > self._memory_kills
        return EngineStatus(
            running=False,
            who=f"process {owner.pid}",
            since=owner.started,
            output_since=owner.started,
            ended=OUT_OF_MEMORY if out_of_memory else "cause unknown" if died else "stopped",
            exit_code=None if died else 0,
            out_of_memory=out_of_memory,
            problem=NO_MEMORY if out_of_memory else DIED if died else None,
        )

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
        if not alive:
            return None
        if owner != self._taken_over:
            self._taken_over, self._ended, self._killed = owner, None, False
        return owner

    def _url(self) -> str | None:
        owner = read_owner(self._home.lock)
        if owner is None:
            return None
        host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(owner.host, owner.host)
        return f"http://[{host}]:{owner.port}" if ":" in host else f"http://{host}:{owner.port}"


def _end_told(ended: EngineStatus) -> EngineEvent:
    text = f"ended: {ended.ended}" if ended.ended else "ended"
    return EngineEvent(time.time(), text, failed=bool(ended.exit_code or ended.problem))


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


def _created(pid: int) -> float | None:
    with contextlib.suppress(psutil.NoSuchProcess):
        return float(psutil.Process(pid).create_time())
    return None


def _wait_for(pid: int) -> None:
    """Until a process that is not our child has ended; psutil polls."""
    try:
        psutil.Process(pid).wait()
    except psutil.NoSuchProcess:
        return
