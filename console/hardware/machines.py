"""Which machine is spoken of: the engine's, as its front door describes it, or this console's where none answers."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property

import httpx
import msgspec

from appliance.hardware.engine_machine import Machine, place, this_machine
from appliance.home import Home
from console.access.token import token_header

GOOD_FOR_S = 5.0
"""How long a look is good for while somebody types."""
SLOW_S = 1.0
"""A look that took longer is good for twice as long as it took: nobody is to wait for each page."""
TIMEOUT_S = 12.0
"""A front door answers within the time that it waits for a driver; where it does not, it stands still."""


@dataclass(frozen=True)
class Seen:
    """`engine_url` is where the front door told of `machine`; empty where it is the console's own. `problem` says what
    was wrong with a front door's answer."""

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
            told = "the engine's machine"
        elif self.problem:
            told = "this console's own machine"
        else:
            told = "this console's own machine, as no engine answers"
        return f"{told}, replayed from a recording" if self.machine.inventory.replayed else told


class Machines:
    """Looks at the machine that counts. `engine_url` says where the front door is now; None where there is none to ask,
    as in `ingot profile` without a console."""

    def __init__(
        self,
        home: Home,
        engine_url: Callable[[], str] | None = None,
        environ: Mapping[str, str] = os.environ,
    ) -> None:
        self._home = home
        self._engine_url = engine_url
        self._environ = environ
        self._lock = threading.Lock()
        self._seen: Seen | None = None
        self._at = self._took_s = 0.0

    @cached_property
    def _client(self) -> httpx.Client:
        return httpx.Client(trust_env=False)  # takes longer to make than to use

    def look(self, good_for_s: float = GOOD_FOR_S) -> Seen:
        """Blocking. An earlier look counts if it is not older than `good_for_s`."""
        with self._lock:  # several fields of a form ask at once; one look is enough for them
            now = time.monotonic()
            if self._took_s > SLOW_S:
                good_for_s = max(good_for_s, 2 * self._took_s)
            if self._seen is None or now - self._at >= good_for_s:
                self._seen, self._at = self._look(), time.monotonic()
                self._took_s = self._at - now
            return self._seen

    def _look(self) -> Seen:
        url = self._engine_url().rstrip("/") if self._engine_url else ""
        problem = ""
        if url:
            try:
                return Seen(self._ask(url), url)
            except httpx.ConnectError:
                pass  # no front door: nothing is wrong with that
            except _NoAnswer as error:
                problem = f"The engine's front door at {url} does not tell of its machine: {error}."
        return Seen(this_machine(self._environ, self._home), problem=problem)

    def _ask(self, url: str) -> Machine:
        """Raises httpx.ConnectError where nobody listens, and _NoAnswer for anything but a machine."""
        try:
            response = self._client.get(
                f"{url}/appliance/hardware", headers=token_header(self._home), timeout=TIMEOUT_S
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
