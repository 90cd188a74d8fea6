"""What `/metrics` shows of the engine itself: its state, and the figures of the core's last heartbeat."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from appliance.protocol import State

if TYPE_CHECKING:
    from appliance.supervisor.supervisor import Supervisor


class EngineFigures(Collector):
    """Counters count since the engine started; a new one begins at zero."""

    def __init__(self, supervisor: Supervisor) -> None:
        self._supervisor = supervisor

    def collect(self) -> Iterator[Metric]:
        load = self._supervisor.load
        gauges = (
            ("num_requests_running", "Running requests.", load.running),
            ("num_requests_waiting", "Waiting requests.", load.waiting),
            ("kv_cache_usage_perc", "Share of the KV cache in use, from 0 to 1.", load.cache_usage),
            ("prefix_cache_hit_rate", "Share of prompt tokens found in the prefix cache.", load.prefix_cache_hit_rate),
            ("prompt_tokens_per_second", "Prompt tokens computed in the last second.", load.prompt_tokens_per_s),
            ("generation_tokens_per_second", "Tokens generated in the last second.", load.output_tokens_per_s),
        )
        for name, text, value in gauges:
            yield GaugeMetricFamily(f"ingot:{name}", text, value)
        counters = (
            ("num_preemptions", "Requests preempted to free KV cache.", load.preemptions),
            ("prefix_cache_queries", "Prompt tokens looked up in the prefix cache.", load.cache_queries),
            ("prefix_cache_hits", "Prompt tokens found in the prefix cache.", load.cache_hits),
            ("spec_decode_num_draft_tokens", "Tokens that were guessed and verified.", load.draft_tokens),
            ("spec_decode_num_accepted_tokens", "Guessed tokens that were right.", load.accepted_tokens),
        )
        for name, text, count in counters:
            yield CounterMetricFamily(f"ingot:{name}", text, count)
        steps = CounterMetricFamily(
            "ingot:steps",
            "Steps, by how they were computed: in a CUDA graph, or why not.",
            labels=["how"],
        )
        for kind, number in load.steps.items():
            steps.add_metric([kind], number)
        yield steps
        state = GaugeMetricFamily("ingot:engine_state", "1 for the engine's current state.", labels=["state"])
        for each in State:
            state.add_metric([each], float(each is self._supervisor.state))
        yield state
