"""Guesses of the model's own head for multi-token prediction, which the runner asks in every step."""

from __future__ import annotations

from appliance.engine.request import Request


class HeadProposer:
    """A Proposer of one token."""

    def propose(self, request: Request, most: int) -> tuple[int, ...]:
        if most < 1 or request.predicted is None or request.predicted[0] != request.num_tokens:
            return ()
        return (request.predicted[1],)
