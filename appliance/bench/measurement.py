"""What a load has measured so far, in memory that does not grow with it."""

from __future__ import annotations

import itertools
import time

from appliance.bench.answers import Answer, RequestFailedError
from appliance.bench.distribution import Distribution
from appliance.bench.timeline import Timeline


class Failure:
    """One kind: how often, and what the first one said."""

    def __init__(self, first_message: str) -> None:
        self.count = 0
        self.first_message = first_message


class Measurement:
    """Durations in seconds. Those of a request count from when it was due, which in an open loop may be before it was
    sent."""

    def __init__(self, output_tokens: int) -> None:
        self.first_token = Distribution()
        self.inter_token = Distribution()  # every gap between two events of an answer
        self.per_output_token = Distribution()  # the mean of an answer, without its first token
        self.end_to_end = Distribution()
        self.late = Distribution()  # from due to sent
        self.timeline: Timeline | None = None
        self.failures: dict[str, Failure] = {}
        self.begun = 0
        self.unfinished = 0
        self.not_sent = 0
        self.completed = 0
        self.output_tokens = 0
        self.prompt_tokens = 0
        self.events = 0
        self.short = 0  # answers with fewer tokens than were asked for
        self.usage_told = True
        self._asked_for = output_tokens
        self._began = 0.0
        self._last_token = 0.0
        self._processor_began = time.process_time()

    def begin(self, due: float) -> None:
        if not self.begun:
            self._began = self._last_token = due
            self.timeline = Timeline(due)
        self.begun += 1

    def answered(self, due: float, answer: Answer) -> None:
        assert self.timeline is not None
        events, tokens = answer.events, answer.tokens
        self.completed += 1
        self.output_tokens += tokens
        self.prompt_tokens += answer.prompt_tokens
        self.events += len(events)
        self.short += tokens < self._asked_for
        self.usage_told = self.usage_told and answer.usage_told
        self._last_token = max(self._last_token, events[-1])
        self.late.add(answer.sent - due)
        self.first_token.add(events[0] - due)
        self.end_to_end.add(events[-1] - due)
        if tokens > 1 and len(events) > 1:
            self.per_output_token.add((events[-1] - events[0]) / (tokens - 1))
        for before, after in itertools.pairwise(events):
            self.inter_token.add(after - before)
        self.timeline.add(events, tokens, events[-1])

    def failed(self, error: RequestFailedError) -> None:
        failure = self.failures.setdefault(error.kind, Failure(str(error)))
        failure.count += 1

    @property
    def in_flight(self) -> int:
        failed = sum(failure.count for failure in self.failures.values())
        return self.begun - self.completed - failed - self.unfinished

    @property
    def seconds(self) -> float:
        """From the first request to the last token."""
        return self._last_token - self._began

    @property
    def processor_share(self) -> float:
        """Of one processor, that this process used so far."""
        wall = time.perf_counter() - self._began
        return (time.process_time() - self._processor_began) / wall if self.begun and wall else 0.0
