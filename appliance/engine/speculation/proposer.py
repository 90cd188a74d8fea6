"""What guesses the next tokens of a request."""

from __future__ import annotations

from typing import Protocol

from appliance.engine.request import Request


class Proposer(Protocol):
    """Guesses depend on the request's tokens alone, so that all ranks make the same."""

    def propose(self, request: Request, most: int) -> tuple[int, ...]:
        """Up to `most` tokens, at least 1, that may follow all of `request`'s; () where it has no guess."""
        ...
