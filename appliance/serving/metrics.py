"""`/metrics` in Prometheus' text format. The names follow vLLM's, with the prefix `ingot:`."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import TYPE_CHECKING

from prometheus_client import CollectorRegistry, Counter, Histogram, disable_created_metrics, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from appliance.protocol import State

if TYPE_CHECKING:
    from appliance.supervisor.supervisor import Supervisor
    from appliance.vllm.figures import Figures

FIRST_TOKEN_BUCKETS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60)
TOKEN_BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5)
REQUEST_BUCKETS = (0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600)


class Metrics:
    def __init__(self, supervisor: Supervisor) -> None:
        disable_created_metrics()  # type: ignore[no-untyped-call]
        self._registry = CollectorRegistry(auto_describe=False)
        self._registry.register(EngineGauges(supervisor))

        def counter(name: str, text: str, *labels: str) -> Counter:
            return Counter(f"ingot:{name}", text, labels, registry=self._registry)

        def histogram(name: str, text: str, buckets: tuple[float, ...]) -> Histogram:
            return Histogram(f"ingot:{name}", text, registry=self._registry, buckets=buckets)

        self.prompt_tokens = counter("prompt_tokens", "Prompt tokens.")
        self.cached_tokens = counter("prompt_tokens_cached", "Prompt tokens found in the prefix cache.")
        self.generation_tokens = counter("generation_tokens", "Generated tokens.")
        self.requests = counter("request_success", "Completed answers, by finish reason.", "finished_reason")
        self.failures = counter("request_failure", "Requests refused or failed, by HTTP status.", "status")
        self.aborts = counter("request_aborted", "Requests whose client disconnected before the end.")
        self.first_token = histogram(
            "time_to_first_token_seconds", "Time from a request's arrival to its first token.", FIRST_TOKEN_BUCKETS
        )
        self.token_time = histogram(
            "inter_token_latency_seconds", "Average time between tokens of a request.", TOKEN_BUCKETS
        )
        self.request_time = histogram(
            "e2e_request_latency_seconds", "Time from a request's arrival to its last token.", REQUEST_BUCKETS
        )

    def stopwatch(self, prompt_tokens: int) -> Stopwatch:
        return Stopwatch(self, prompt_tokens)

    def count(self, before: Figures, now: Figures) -> None:
        """What vLLM counted since the last look. Its counters restart at zero with it."""

        def since(name: str) -> float:
            return max(float(getattr(now, name)) - float(getattr(before, name)), 0.0)

        self.prompt_tokens.inc(since("prompt_tokens"))
        self.cached_tokens.inc(since("cache_hits"))
        self.generation_tokens.inc(since("output_tokens"))
        for reason, number in now.finished.items():
            self.requests.labels(reason).inc(max(number - before.finished.get(reason, 0.0), 0.0))

    def text(self) -> bytes:
        return generate_latest(self._registry)


class Stopwatch:
    """The times of one answer, from the arrival of its request."""

    def __init__(self, metrics: Metrics, prompt_tokens: int) -> None:
        self._metrics = metrics
        self._began = time.perf_counter()
        self._first: float | None = None
        metrics.prompt_tokens.inc(prompt_tokens)

    def tokens(self, count: int) -> None:
        if count and self._first is None:
            self._first = time.perf_counter()
            self._metrics.first_token.observe(self._first - self._began)
        self._metrics.generation_tokens.inc(count)

    def finished(self, reason: str, tokens: int, cached_tokens: int) -> None:
        now = time.perf_counter()
        self._metrics.requests.labels(reason).inc()
        self._metrics.cached_tokens.inc(cached_tokens)
        self._metrics.request_time.observe(now - self._began)
        if self._first is not None and tokens > 1:
            self._metrics.token_time.observe((now - self._first) / (tokens - 1))


class EngineGauges(Collector):
    """The current values from the supervisor and the core's last heartbeat."""

    def __init__(self, supervisor: Supervisor) -> None:
        self._supervisor = supervisor

    def collect(self) -> Iterator[Metric]:
        load = self._supervisor.load
        rows = (
            ("num_requests_running", "Running requests.", load.running),
            ("num_requests_waiting", "Waiting requests.", load.waiting),
            ("kv_cache_usage_perc", "Share of the KV cache in use, from 0 to 1.", load.cache_usage),
            (
                "prefix_cache_hit_rate",
                "Recent share of prompt tokens found in the prefix cache.",
                load.prefix_cache_hit_rate,
            ),
            (
                "num_preemptions",
                "Requests preempted to free KV cache since the engine started.",
                load.preemptions,
            ),
            ("prompt_tokens_per_second", "Prompt tokens computed in the last second.", load.prompt_tokens_per_s),
            ("generation_tokens_per_second", "Tokens generated in the last second.", load.output_tokens_per_s),
        )
        for name, text, value in rows:
            yield GaugeMetricFamily(f"ingot:{name}", text, value)
        steps = CounterMetricFamily(
            "ingot:steps",
            "Steps, by how they were computed: in a CUDA graph, or why not.",
            labels=["how"],
        )
        for kind, count in load.steps.items():
            steps.add_metric([kind], count)
        yield steps
        state = GaugeMetricFamily("ingot:engine_state", "1 for the engine's current state.", labels=["state"])
        for each in State:
            state.add_metric([each], float(each is self._supervisor.state))
        yield state
