"""Requests that wait for a model to run, and those that have been let in."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass, field

from appliance.serving.errors import ApiError


@dataclass(eq=False)
class Ticket:
    """A request's place. `key` is the name of its API key. `outcome` has a result once the request is let in, or the
    error that it is answered with."""

    model: str
    key: str
    max_wait_s: float
    since: float = field(default_factory=time.monotonic)
    outcome: asyncio.Future[None] = field(default_factory=lambda: asyncio.get_running_loop().create_future())

    @property
    def let_in(self) -> bool:
        return self.outcome.done() and self.outcome.exception() is None

    @property
    def seconds_left(self) -> float:
        return max(self.since + self.max_wait_s - time.monotonic(), 0.0)


class WaitingRequests:
    """Oldest first."""

    def __init__(self) -> None:
        self._tickets: list[Ticket] = []

    def __len__(self) -> int:
        return len(self._tickets)

    @property
    def models(self) -> list[str]:
        """Whichever has the oldest request first."""
        return list(dict.fromkeys(ticket.model for ticket in self._tickets))

    def of(self, model: str) -> list[Ticket]:
        return [ticket for ticket in self._tickets if ticket.model == model]

    def add(self, ticket: Ticket) -> None:
        self._tickets.append(ticket)

    def remove(self, ticket: Ticket) -> None:
        """Does nothing if it waits no more."""
        if ticket in self._tickets:
            self._tickets.remove(ticket)

    def refuse(self, error: ApiError, model: str | None = None) -> None:
        """All, or those for one model."""
        for ticket in self._taken(model):
            ticket.outcome.set_exception(error)

    def let_in(self, model: str, entered: Entered) -> None:
        """They count from here on."""
        for ticket in self._taken(model):
            entered.add()
            ticket.outcome.set_result(None)

    def _taken(self, model: str | None) -> list[Ticket]:
        taken = [ticket for ticket in self._tickets if model in (None, ticket.model)]
        self._tickets = [ticket for ticket in self._tickets if ticket not in taken]
        return [ticket for ticket in taken if not ticket.outcome.done()]


class Entered:
    """How many requests have been let in and not been answered yet."""

    def __init__(self) -> None:
        self._count = 0
        self._none = asyncio.Event()
        self._none.set()

    def __len__(self) -> int:
        return self._count

    def __enter__(self) -> None:
        self.add()

    def __exit__(self, *_: object) -> None:
        self.remove()

    def add(self) -> None:
        self._count += 1
        self._none.clear()

    def remove(self) -> None:
        self._count -= 1
        if not self._count:
            self._none.set()

    async def none_left(self) -> None:
        await self._none.wait()
