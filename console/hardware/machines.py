"""Which machine is spoken of: the engine's, as its front door describes it. Where none answers it is, of an engine with
a container of its own, what was told last; else this console's."""

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
"""How long a look is good for while somebody types."""
SLOW_S = 1.0
"""A look that took longer is good for twice as long as it took: nobody is to wait for each page."""
TIMEOUT_S = 12.0
"""A front door answers within the time that it waits for a driver; where it does not, it stands still."""
CONNECT_TIMEOUT_S = 2.0
PATIENCE_S = 2.0
"""Nobody waits longer for a front door: until it answers, what it told before is shown."""
KEEP_EVERY_S = 60.0
MAX_BYTES = 1 << 20


@dataclass(frozen=True)
class Seen:
    """`engine_url` is where the front door told of `machine`; empty where it is the console's own. `problem` says what
    was wrong with a front door's answer, or that there was none yet: `machine` is then what it told before, or the
    console's own."""

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
            told = "the engine's machine as it was told before" if self.problem else "the engine's machine"
        elif self.problem:
            told = "this console's own machine"
        else:
            told = "this console's own machine, as no engine answers"
        return f"{told}, replayed from a recording" if self.machine.inventory.replayed else told


@dataclass(frozen=True)
class _Look:
    """One look under way. `answered`: the front door has, or is given up."""

    began: float
    answered: threading.Event = field(default_factory=threading.Event)
    done: threading.Event = field(default_factory=threading.Event)


class Machines:
    """Looks at the machine that counts. `engine_url` says where the front door is now; None where there is none to ask,
    as in `ingot profile` without a console. `kept` is where the engine's machine is written down for the time when its
    front door is stopped; None where the engine runs beside this console, whose machine is the same then."""

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
        """Blocking, though not for long. An earlier look counts if it is not older than `good_for_s`."""
        with self._lock:  # several fields of a form ask at once; one look is enough for them
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
        """In a thread of its own: those who wait for it would take one each from what other pages need."""
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
                pass  # no front door: nothing is wrong with that
            except _NoAnswer as error:
                problem = f"The engine's front door at {url} does not tell of its machine: {error}."
        look.answered.set()
        if url and (before := self._told_before()) is not None:
            return Seen(before, url, problem or f"The engine's front door at {url} does not answer: it is not running.")
        return Seen(this_machine(self._environ, self._home), problem=problem)

    def _keep(self, machine: Machine) -> Machine:
        if self._kept is not None and time.monotonic() - self._kept_at >= KEEP_EVERY_S:
            try:
                write_atomically(self._kept, msgspec.json.encode(machine))
            except OSError as error:  # only a stopped engine's preview is the poorer for it
                log.warning("The engine's machine could not be written to %s: %s", self._kept, error)
            self._kept_at = time.monotonic()
        return machine

    def _told_before(self) -> Machine | None:
        if self._kept is None:
            return None
        try:
            return msgspec.json.decode(read_file(self._kept, MAX_BYTES), type=Machine)
        except (OSError, msgspec.MsgspecError):  # none yet, or another version's: a front door tells it anew
            return None

    def _meanwhile(self) -> Seen:
        """What is known while a front door is silent."""
        problem = f"The engine's front door at {self._url()} has not answered for {PATIENCE_S:g} s."
        seen = self._seen
        return replace(seen, problem=problem) if seen else Seen(this_machine(self._environ, self._home), "", problem)

    def _url(self) -> str:
        return self._engine_url().rstrip("/") if self._engine_url else ""

    def _ask(self, url: str) -> Machine:
        """Raises httpx.ConnectError where nobody listens, and _NoAnswer for anything but a machine."""
        try:
            response = self._client.get(
                f"{url}/appliance/hardware",
                headers=token_header(self._home),
                timeout=httpx.Timeout(TIMEOUT_S, connect=CONNECT_TIMEOUT_S),
            )
            if response.status_code != 200:
                raise _NoAnswer(f"it answered with status {response.status_code}")
            return msgspec.json.decode(response.content, type=Machine)
        except httpx.ConnectError:
            raise
        except httpx.HTTPError as error:
            raise _NoAnswer(type(error).__name__) from error
        except msgspec.MsgspecError as error:
            raise _NoAnswer(f"it is of another version ({error})") from error


class _NoAnswer(Exception):
    """A front door that is there, and does not say what was asked."""
