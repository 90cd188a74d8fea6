"""Which machine pages show: the engine's, as its front door reports it. If none answers, it is the last report of an
engine with its own container, or else the console's own machine."""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path

import httpx
import msgspec

from appliance.hardware.engine_machine import Machine, place, this_machine
from appliance.home import Home, read_file, write_atomically
from console.access.token import token_header

log = logging.getLogger(__name__)

GOOD_FOR_S = 5.0
"""How long a look stays valid while somebody types."""
SLOW_S = 1.0
"""A slower look stays valid for twice as long as it took, so that not every page has to wait."""
TIMEOUT_S = 12.0
"""A front door answers within the time that it waits for a driver; otherwise it is stuck."""
CONNECT_TIMEOUT_S = 2.0
PATIENCE_S = 2.0
"""The longest wait for a front door; until it answers, its last report is shown."""
KEEP_EVERY_S = 60.0
MAX_BYTES = 1 << 20


@dataclass(frozen=True)
class Seen:
    """`engine_url` is the front door that reported `machine`; empty if it is the console's own. `problem` says what was
    wrong with its answer, or that there was none: `machine` is then its last report, or the console's own."""

    machine: Machine
    engine_url: str = ""
    problem: str = ""

    @property
    def is_engines(self) -> bool:
        return bool(self.engine_url)

    @property
    def is_here(self) -> bool:
        """Whether this process sees the files that the engine sees."""
        return not self.is_engines or (bool(self.machine.place) and self.machine.place == place())

    @property
    def whose(self) -> str:
        if self.is_engines:
            told = "the engine's machine, as last reported" if self.problem else "the engine's machine"
        elif self.problem:
            told = "this console's own machine"
        else:
            told = "this console's own machine, as no engine is running"
        return f"{told}, replayed from a recording" if self.machine.inventory.replayed else told


@dataclass(frozen=True)
class _Look:
    """A look in progress. `answered`: the front door answered, or is no longer waited for."""

    began: float
    answered: threading.Event = field(default_factory=threading.Event)
    done: threading.Event = field(default_factory=threading.Event)


class Machines:
    """Finds the machine to show. `engine_url` returns the front door's address; None if there is none to ask, as in
    `ingot profile` without a console. `kept` is the file for the engine's last report, used while it is stopped;
    None if the engine runs beside this console, on the same machine."""

    def __init__(
        self,
        home: Home,
        engine_url: Callable[[], str] | None = None,
        environ: Mapping[str, str] = os.environ,
        kept: Path | None = None,
    ) -> None:
        self._kept = kept
        self._kept_at = -KEEP_EVERY_S
        self._home = home
        self._engine_url = engine_url
        self._environ = environ
        self._lock = threading.Lock()
        self._look: _Look | None = None
        self._seen: Seen | None = None
        self._at = self._took_s = 0.0

    @cached_property
    def _client(self) -> httpx.Client:
        return httpx.Client(trust_env=False)  # takes longer to make than to use

    def look(self, good_for_s: float = GOOD_FOR_S) -> Seen:
        """Blocks, but not for long. Returns an earlier look if it is not older than `good_for_s`."""
        with self._lock:  # several form fields ask at once; one look serves all
            now = time.monotonic()
            if self._took_s > SLOW_S:
                good_for_s = max(good_for_s, 2 * self._took_s)
            if self._seen is not None and now - self._at < good_for_s:
                return self._seen
            look = self._look
            if look is None or look.done.is_set():
                look = _Look(now)
                threading.Thread(target=self._run, args=(look,), name="machine", daemon=True).start()
                self._look = look
        if not look.answered.wait(max(0.0, look.began + PATIENCE_S - now)):
            return self._meanwhile()
        look.done.wait()
        return self._seen or self._meanwhile()

    def _run(self, look: _Look) -> None:
        """In its own thread: otherwise each waiting request would occupy a thread that other pages need."""
        try:
            seen = self._find(look)
            with self._lock:
                self._seen, self._at = seen, time.monotonic()
                self._took_s = self._at - look.began
        finally:
            look.answered.set()
            look.done.set()

    def _find(self, look: _Look) -> Seen:
        url = self._url()
        problem = ""
        if url:
            try:
                return Seen(self._keep(self._ask(url)), url)
            except httpx.ConnectError:
                pass  # no engine is running, which is not a problem
            except _NoAnswer as error:
                problem = f"The engine at {url} did not report its hardware: {error}."
        look.answered.set()
        if url and (before := self._told_before()) is not None:
            return Seen(before, url, problem or f"The engine at {url} is not running.")
        return Seen(this_machine(self._environ, self._home), problem=problem)

    def _keep(self, machine: Machine) -> Machine:
        if self._kept is not None and time.monotonic() - self._kept_at >= KEEP_EVERY_S:
            try:
                write_atomically(self._kept, msgspec.json.encode(machine))
            except OSError as error:  # only the preview of a stopped engine needs it
                log.warning("The engine's machine could not be written to %s: %s", self._kept, error)
            self._kept_at = time.monotonic()
        return machine

    def _told_before(self) -> Machine | None:
        if self._kept is None:
            return None
        try:
            return msgspec.json.decode(read_file(self._kept, MAX_BYTES), type=Machine)
        except (OSError, msgspec.MsgspecError):  # none yet, or written by another version
            return None

    def _meanwhile(self) -> Seen:
        """What to show while the front door does not answer."""
        problem = f"The engine at {self._url()} has not answered for {PATIENCE_S:g} s."
        seen = self._seen
        return replace(seen, problem=problem) if seen else Seen(this_machine(self._environ, self._home), "", problem)

    def _url(self) -> str:
        return self._engine_url().rstrip("/") if self._engine_url else ""

    def _ask(self, url: str) -> Machine:
        """Raises httpx.ConnectError if nothing listens, and _NoAnswer for any other failure."""
        try:
            response = self._client.get(
                f"{url}/appliance/hardware",
                headers=token_header(self._home),
                timeout=httpx.Timeout(TIMEOUT_S, connect=CONNECT_TIMEOUT_S),
            )
            if response.status_code != 200:
                raise _NoAnswer(f"status {response.status_code}")
            return msgspec.json.decode(response.content, type=Machine)
        except httpx.ConnectError:
            raise
        except httpx.HTTPError as error:
            raise _NoAnswer(type(error).__name__) from error
        except msgspec.MsgspecError as error:
            raise _NoAnswer("it is of another version than this console") from error


class _NoAnswer(Exception):
    """The front door is running but did not return a machine."""
