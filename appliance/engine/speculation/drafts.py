"""Which requests get drafts, how many, and what comes of them.

A draft is verified by sampling: behind the last known token and behind each draft the model samples the next token as
it always does, with the request's own random number for that position. The request keeps what was sampled, up to the
first token that is not the draft. So each token is sampled from the same distribution, by the same number, as
without drafts, and drafts decide only how many come of one step.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from appliance.checkpoint.memory.graph_shapes import most_rows
from appliance.core_protocol import EngineConfig
from appliance.engine.request import Request
from appliance.engine.speculation.acceptance import Acceptance
from appliance.engine.speculation.mtp import HeadProposer
from appliance.engine.speculation.ngram import NgramProposer
from appliance.engine.speculation.proposer import Proposer

# Of all requests together.
WINDOW: Final = 2048
PAUSE: Final = 8192


class Drafts:
    """`most` drafts a request and step; a step has at most `most_rows` sequences, drafts included."""

    def __init__(self, proposer: Proposer, most: int, most_rows: int) -> None:
        self.num_drafted = 0
        self.num_accepted = 0
        self.most_rows = most_rows
        self._proposer = proposer
        self._most = most
        self._acceptance = Acceptance(WINDOW, PAUSE)

    def are_wanted(self, request: Request) -> bool:
        """Whether some are to be looked for as soon as all of `request`'s tokens are read."""
        return self._acceptance.is_on and request.acceptance.is_on and self._can_be_verified(request)

    def propose(self, request: Request, most: int) -> tuple[int, ...]:
        """Up to `most` for `request`, which decodes in the step that is scheduled; () where they are not wanted."""
        if not self._can_be_verified(request):
            return ()
        paused = [acceptance for acceptance in (self._acceptance, request.acceptance) if not acceptance.is_on]
        for acceptance in paused:
            acceptance.leave_out()
        if paused or request.num_unread or most <= 0:
            return ()
        drafts = self._proposer.propose(request, min(most, self._most))
        if not drafts:
            self._note(request, 0)
        return drafts

    def note(self, request: Request, drafted: int, accepted: int) -> None:
        """So many drafts were verified, and so many of them accepted."""
        self.num_drafted += drafted
        self.num_accepted += accepted
        self._note(request, accepted)

    def _note(self, request: Request, gained: int) -> None:
        self._acceptance.note(gained)
        request.acceptance.note(gained)

    def _can_be_verified(self, request: Request) -> bool:
        """How its next tokens are to be sampled is known before those in between are."""
        if not request.num_sampled or request.has_penalties or request.may_not_end or request.constraint is not None:
            return False
        return request.thinking is None or not request.thinking.may_force(request.num_unread + self._most)


def drafts_of(config: EngineConfig) -> Drafts | None:
    """What a core with that configuration drafts by; None if it does not."""
    if config.drafts == "none":
        return None
    proposer = HeadProposer() if config.drafts == "mtp" else NgramProposer()
    most = config.num_speculative_tokens
    return Drafts(proposer, most, most_rows(config.max_num_seqs, most))


def accepted_run(drafts: Sequence[int], sampled: Sequence[int | None], sound: Sequence[bool]) -> int:
    """How many of the tokens that were `sampled` behind the last known one, and behind each of `drafts`, a request goes
    on with: the first, and each one behind a draft that is what was sampled there. One that is None, or is not `sound`,
    ends them: the next step comes to it without drafts."""
    count = 1
    for draft in drafts:
        if sampled[count - 1] != draft or not sound[count] or sampled[count] is None:
            break
        count += 1
    return count
