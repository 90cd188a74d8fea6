"""`/metrics` in Prometheus' text format. The names follow vLLM's, with the prefix `ingot:`."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from prometheus_client import CollectorRegistry, Counter, Gauge, disable_created_metrics, generate_latest

from appliance.core_protocol import FinishReason
from appliance.serving.engine_figures import EngineFigures
from appliance.serving.instruments import Histogram, PlainCounter
from appliance.serving.stopwatch import ABORTED, ERROR, Stopwatch

if TYPE_CHECKING:
    from appliance.supervisor.supervisor import Supervisor
    from appliance.vllm.figures import Figures

FIRST_TOKEN_BUCKETS: Final = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60)
TOKEN_BUCKETS: Final = (0.001, 0.0025, 0.005, 0.0075, 0.01, 0.015, 0.025, 0.05, 0.075, 0.1, 0.25, 0.5, 1, 2.5)
PHASE_BUCKETS: Final = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300)
REQUEST_BUCKETS: Final = (0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600)
COUNT_BUCKETS: Final = tuple(digit * 10**power for power in range(6) for digit in (1, 2, 5))
SWAP_BUCKETS: Final = (0.5, 1, 2, 3, 5, 10, 20, 30, 60, 120, 300, 600)
# vLLM's words for what ends a request, where ours differ.
OUTCOMES_OF_VLLM: Final = {"abort": ABORTED}


class Metrics:
    """`key_name` gives the name of an API key by its id."""

    def __init__(self, supervisor: Supervisor, key_name: Callable[[str], str]) -> None:
        disable_created_metrics()  # type: ignore[no-untyped-call]
        self._key_name = key_name
        self._registry = CollectorRegistry(auto_describe=False)
        self._registry.register(EngineFigures(supervisor))

        def counter(name: str, text: str, *labels: str) -> Counter:
            return Counter(f"ingot:{name}", text, labels, registry=self._registry)

        def histogram(name: str, text: str, buckets: tuple[float, ...]) -> Histogram:
            made = Histogram(f"ingot:{name}", text, buckets)
            self._registry.register(made)
            return made

        self.prompt_tokens = counter("prompt_tokens", "Prompt tokens.")
        self.cached_tokens = counter("prompt_tokens_cached", "Prompt tokens found in the prefix cache.")
        self.generation_tokens = PlainCounter("ingot:generation_tokens", "Generated tokens.")
        self._registry.register(self.generation_tokens)
        self.requests = counter("request_success", "Completed answers, by finish reason.", "finished_reason")
        self.failures = counter("request_failure", "Requests refused or failed, by HTTP status.", "status")
        self.aborts = counter("request_aborted", "Answers whose client disconnected early; with vLLM, requests.")
        self.outcomes = counter("requests", "Answers that the engine began, by how they ended.", "outcome")
        for outcome in (FinishReason.STOP, FinishReason.LENGTH, ABORTED, ERROR):
            self.outcomes.labels(outcome)
        whose = ("model_name", "api_key")
        self._prompt_tokens_of = counter("key_prompt_tokens", "Prompt tokens of ended answers, by API key.", *whose)
        self._tokens_of = counter("key_generation_tokens", "Tokens of ended answers, by API key.", *whose)

        self.first_token = histogram(
            "time_to_first_token_seconds", "Time from a request's arrival to its first token.", FIRST_TOKEN_BUCKETS
        )
        self.inter_token = histogram(
            "inter_token_latency_seconds", "Time between two tokens of an answer.", TOKEN_BUCKETS
        )
        self.token_time = histogram(
            "request_time_per_output_token_seconds", "Average time between the tokens of an answer.", TOKEN_BUCKETS
        )
        self.queue_time = histogram(
            "request_queue_time_seconds", "Time from a request's arrival in the core to its first step.", PHASE_BUCKETS
        )
        self.prefill_time = histogram(
            "request_prefill_time_seconds", "Time from a request's first step to its first token.", PHASE_BUCKETS
        )
        self.decode_time = histogram(
            "request_decode_time_seconds", "Time from a request's first token to its last.", REQUEST_BUCKETS
        )
        self.request_time = histogram(
            "e2e_request_latency_seconds", "Time from a request's arrival to its last token.", REQUEST_BUCKETS
        )
        self._swaps = counter("model_swaps", "Swaps that requests asked for, by how they ended.", "outcome")
        for outcome in ("ready", "refused", "failed"):
            self._swaps.labels(outcome)
        self._swap_time = histogram(
            "model_swap_seconds",
            "Time of a swap, from the beginning of its drain.",
            SWAP_BUCKETS,
        )
        self.waiting = Gauge(
            "ingot:num_requests_waiting_for_model", "Requests that wait for another model.", registry=self._registry
        )
        self.request_prompt_tokens = histogram("request_prompt_tokens", "Prompt tokens of an answer.", COUNT_BUCKETS)
        self.request_generation_tokens = histogram("request_generation_tokens", "Tokens of an answer.", COUNT_BUCKETS)

    def stopwatch(self, prompt_tokens: int, model: str, key_id: str) -> Stopwatch:
        return Stopwatch(self, prompt_tokens, model, key_id)

    def spent(self, model: str, key_id: str, prompt_tokens: int, tokens: int) -> None:
        """An answer has ended, and took so many tokens."""
        whose = (model, self._key_name(key_id))
        self._prompt_tokens_of.labels(*whose).inc(prompt_tokens)
        self._tokens_of.labels(*whose).inc(tokens)

    def swapped(self, outcome: str, seconds: float | None = None) -> None:
        """`outcome`: ready, refused (by preflight) or failed."""
        self._swaps.labels(outcome).inc()
        if seconds is not None:
            self._swap_time.observe(seconds)

    def count(self, before: Figures, now: Figures) -> None:
        """What vLLM counted since the last look. Its counters restart at zero with it."""

        def since(name: str) -> float:
            return max(float(getattr(now, name)) - float(getattr(before, name)), 0.0)

        self.prompt_tokens.inc(since("prompt_tokens"))
        self.cached_tokens.inc(since("cache_hits"))
        self.generation_tokens.inc(since("output_tokens"))
        for reason, number in now.finished.items():
            more = max(number - before.finished.get(reason, 0.0), 0.0)
            self.requests.labels(reason).inc(more)
            self.outcomes.labels(OUTCOMES_OF_VLLM.get(reason, reason)).inc(more)

    def text(self) -> bytes:
        return generate_latest(self._registry)
