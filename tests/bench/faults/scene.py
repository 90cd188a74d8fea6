"""A launch that is to fail, as whoever provokes it sees it: its folder, its processes, what it has said so far."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import msgspec
import psutil

from appliance.home_lock import read_owner
from appliance.protocol import Event, EventBody, PhaseChange, State, StateChange
from tests.running import Appliance, fetch, wait_for

# A word of the command line of the process that holds the model.
CORES = {"native": "appliance.engine", "vllm": "VLLM::EngineCore"}
ENDED = (State.FAILED, State.HUNG, State.STOPPED)


@dataclass
class Scene:
    """`press` is a button of the engine (start, stop); `acted` the moment (`time.time()`) when something was done to
    it; None before. `afterwards` undoes what would be in the way of the next one."""

    running: Appliance
    press: Callable[[str], None]
    launch: str
    model: Path
    hooks: Path
    engine: str = "native"
    acted: float | None = None
    held: list[int] = field(default_factory=list)
    afterwards: contextlib.ExitStack = field(default_factory=contextlib.ExitStack)

    @property
    def folder(self) -> Path:
        return self.running.home / "launches" / self.launch

    def events(self) -> Iterator[Event]:
        try:
            lines = (self.folder / "events.jsonl").read_bytes().splitlines(keepends=True)
        except FileNotFoundError:
            return
        for line in lines:
            if line.endswith(b"\n"):
                yield msgspec.json.decode(line, type=Event)

    def wait_for_phase(self, phase: str, timeout_s: float = 120.0) -> None:
        """Until it has begun."""
        self._wait(f"the phase {phase}", lambda body: isinstance(body, PhaseChange) and body.phase == phase, timeout_s)

    def wait_ready(self, timeout_s: float = 240.0) -> None:
        self._wait("ready", lambda body: isinstance(body, StateChange) and body.state is State.READY, timeout_s)

    def processes(self) -> list[psutil.Process]:
        """Of the engine: all below the front door."""
        owner = read_owner(Path(self.running.home / "serve.lock"))
        try:
            return psutil.Process(owner.pid).children(recursive=True) if owner else []
        except psutil.NoSuchProcess:
            return []

    def core(self) -> int:
        """The process that holds the model: the native core, or vLLM's EngineCore."""
        return wait_for("the engine's core", self._core, 120, every_s=0.01)

    def send(self, number: signal.Signals) -> None:
        """To the core; the moment is kept."""
        pid = self.core()
        self.acted = time.time()
        os.kill(pid, number)

    def hold(self) -> None:
        """Keep a native core from going on until `go_on`, so that what is spoilt is spoilt before it is read."""
        pid = self.core()
        os.kill(pid, signal.SIGSTOP)
        self.held.append(pid)

    def go_on(self) -> None:
        for pid in self.held:
            os.kill(pid, signal.SIGCONT)
        self.held.clear()

    def ask(self, prompt: list[int], max_tokens: int = 1) -> None:
        """One request of a client, whatever becomes of it."""
        name = self.running.state().get("models", [""])[0]
        body = {"model": name, "prompt": prompt, "max_tokens": max_tokens, "temperature": 0, "ignore_eos": True}
        fetch(f"{self.running.engine}/v1/completions", body, timeout_s=20)

    def _core(self) -> int | None:
        for process in self.processes():
            try:
                words = process.cmdline()
            except psutil.Error:
                continue
            if CORES[self.engine] in words:  # a native core is also started ahead, before the engine is known
                return process.pid
        return None

    def _wait(self, what: str, is_it: Callable[[EventBody], bool], timeout_s: float) -> None:
        def look() -> bool:
            bodies = [event.body for event in self.events()]
            ended = next((body for body in bodies if isinstance(body, StateChange) and body.state in ENDED), None)
            if ended is not None:
                raise RuntimeError(f"the launch ended ({ended.state}: {ended.reason}) before {what}")
            return any(is_it(body) for body in bodies)

        wait_for(what, look, timeout_s, every_s=0.01)
