"""The times and tokens of one answer, for the metrics."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from appliance.core_protocol import TokenOutput

if TYPE_CHECKING:
    from appliance.serving.metrics import Metrics

ABORTED = "aborted"
ERROR = "error"


class Stopwatch:
    """Starts with the arrival of the request. Tokens are timed as they come from the core, whether or not a slow client
    has read those before."""

    def __init__(self, metrics: Metrics, prompt_tokens: int, model: str, key_id: str) -> None:
        self.ended = False
        self._metrics = metrics
        self._prompt_tokens = prompt_tokens
        self._model = model
        self._key_id = key_id
        self._tokens = 0
        self._began = time.perf_counter()
        self._first: float | None = None
        self._last = 0.0

    def accepted(self) -> None:
        """The core has the request."""
        self._metrics.prompt_tokens.inc(self._prompt_tokens)

    def arrived(self, output: TokenOutput, now: float) -> None:
        if not output.token_ids:
            return
        if self._first is not None:
            self._metrics.inter_token.observe(now - self._last)
        else:
            self._first = now
            self._metrics.first_token.observe(now - self._began)
            if output.queued_s is not None:
                self._metrics.queue_time.observe(output.queued_s)
            if output.prefill_s is not None:
                self._metrics.prefill_time.observe(output.prefill_s)
        self._last = now

    def read(self, tokens: int) -> None:
        """So many more have become part of the answer."""
        self._tokens += tokens
        self._metrics.generation_tokens.inc(tokens)

    def finished(self, reason: str, cached_tokens: int) -> None:
        metrics, tokens = self._metrics, self._tokens
        metrics.requests.labels(reason).inc()
        metrics.cached_tokens.inc(cached_tokens)
        metrics.request_prompt_tokens.observe(self._prompt_tokens)
        metrics.request_generation_tokens.observe(tokens)
        if self._first is not None:
            metrics.request_time.observe(self._last - self._began)
            decoding = self._last - self._first
            metrics.decode_time.observe(decoding)
            if tokens > 1:
                metrics.token_time.observe(decoding / (tokens - 1))
        self._end(reason)

    def aborted(self) -> None:
        """Nobody waits for the rest."""
        self._metrics.aborts.inc()
        self._end(ABORTED)

    def failed(self) -> None:
        """The engine could not answer to the end."""
        self._end(ERROR)

    def _end(self, outcome: str) -> None:
        self.ended = True
        self._metrics.outcomes.labels(outcome).inc()
        self._metrics.spent(self._model, self._key_id, self._prompt_tokens, self._tokens)
