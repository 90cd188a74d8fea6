"""What `/metrics` tells of answers: their times, lengths, outcomes, and whose tokens they were."""

from __future__ import annotations

import asyncio
import hashlib
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import pytest
from prometheus_client.parser import text_string_to_metric_families

from appliance.core_protocol import FinishReason, Outputs, SamplingParams, TokenOutput
from appliance.engine_client.client import CoreClient
from appliance.engine_process.errors import EngineGoneError
from appliance.home import Home
from appliance.protocol import Load, State
from appliance.serving.access import NO_KEY, UNKNOWN_KEY, KeyNames
from appliance.serving.instruments import Histogram
from appliance.serving.metrics import Metrics
from appliance.supervisor.supervisor import Supervisor
from appliance.vllm.figures import Figures
from tests.supervisor.scripted import Door

Samples = dict[tuple[str, tuple[str, ...]], float]


def samples(text: str) -> Samples:
    """By name, without its prefix, and the values of its labels, which are in the order of their names."""
    return {
        (sample.name.removeprefix("ingot:"), tuple(sample.labels.values())): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def of(door: Door) -> Samples:
    return samples(door.http.get("/metrics").text)


def gained(door: Door, ask: Callable[[], Any]) -> Callable[..., float]:
    """What `ask` adds to a sample."""
    before = of(door)
    ask()
    after = of(door)
    return lambda name, *labels: after.get((name, labels), 0.0) - before.get((name, labels), 0.0)


def test_an_answer_is_in_every_histogram_once_and_each_gap_between_its_tokens(door: Door) -> None:
    """Queue and prefill as the core tells them; a slow reader would change none of it."""
    body = {"prompt": "x", "max_tokens": 5}
    more = gained(door, lambda: door.http.post("/v1/completions", json=body).raise_for_status())
    for name in (
        "time_to_first_token_seconds", "e2e_request_latency_seconds", "request_queue_time_seconds",
        "request_prefill_time_seconds", "request_decode_time_seconds", "request_time_per_output_token_seconds",
        "request_prompt_tokens", "request_generation_tokens",
    ):  # fmt: skip
        assert more(f"{name}_count") == 1, name
    assert more("inter_token_latency_seconds_count") == 4
    assert more("request_queue_time_seconds_sum") == 0.25
    assert more("request_prefill_time_seconds_sum") == 0.5
    assert more("request_generation_tokens_sum") == 5
    assert more("request_generation_tokens_bucket", "2.0") == 0
    assert more("request_generation_tokens_bucket", "5.0") == 1
    decoding = more("request_decode_time_seconds_sum")
    assert decoding == pytest.approx(more("inter_token_latency_seconds_sum"))
    assert decoding == pytest.approx(4 * more("request_time_per_output_token_seconds_sum"))
    first, whole = more("time_to_first_token_seconds_sum"), more("e2e_request_latency_seconds_sum")
    assert whole == pytest.approx(first + decoding)


def test_answers_are_counted_by_outcome(door: Door) -> None:
    """Those that have not happened yet are there with zero, so that a rate can be made of the first."""
    assert {labels for name, labels in of(door) if name == "requests_total"} == {
        (outcome,) for outcome in ("stop", "length", "aborted", "error")
    }
    ask = {"prompt": "x", "max_tokens": 3, "n": 2}
    more = gained(door, lambda: door.http.post("/v1/completions", json=ask).raise_for_status())
    assert more("requests_total", "length") == 2
    stopped = {"prompt": "x", "max_tokens": 200, "stop": "brown"}
    more = gained(door, lambda: door.http.post("/v1/completions", json=stopped).raise_for_status())
    assert (more("requests_total", "stop"), more("requests_total", "aborted")) == (1, 0)


def test_a_client_that_leaves_is_one_aborted_answer(door: Door) -> None:
    def leave() -> None:
        body = {"prompt": "x", "max_tokens": 500, "stream": True}
        with door.http.stream("POST", "/v1/completions", json=body) as answer:
            next(answer.iter_lines())
        deadline = time.monotonic() + 9
        while of(door)["requests_total", ("aborted",)] == before and time.monotonic() < deadline:
            time.sleep(0.02)

    before = of(door)["requests_total", ("aborted",)]
    more = gained(door, leave)
    assert more("requests_total", "aborted") == 1
    assert more("request_aborted_total") == 1
    assert more("e2e_request_latency_seconds_count") == 0


def test_answers_of_an_engine_that_dies_are_errors(tmp_path: Path) -> None:
    with Door(Home.at(tmp_path / "home").create(), at="submit", do="kill", nth=3) as door:
        door.wait("ready")
        answer = door.http.post("/v1/completions", json={"prompt": "x", "max_tokens": 100, "n": 2})
        assert answer.status_code == 502
        found = of(door)
        assert (found["requests_total", ("error",)], found["requests_total", ("aborted",)]) == (2, 0)


def test_tokens_are_told_by_model_and_by_the_name_of_the_key(door: Door, door_home: Home) -> None:
    """Never by the key itself, and nothing that a client makes up becomes a label."""
    rows = [{"id": "k1", "name": "editor", "sha256": hashlib.sha256(b"secret-1").hexdigest()}]
    door_home.api_keys.write_text(json.dumps({"required": False, "keys": rows}))

    def ask() -> None:
        for key in ("secret-1", "made-up"):
            headers = {"authorization": f"Bearer {key}"}
            body = {"prompt": "x", "max_tokens": 7}
            door.http.post("/v1/completions", json=body, headers=headers).raise_for_status()

    try:
        more = gained(door, ask)
    finally:
        door_home.api_keys.unlink()
    assert more("key_generation_tokens_total", "editor", "tiny") == 7
    assert more("key_generation_tokens_total", NO_KEY, "tiny") == 7
    assert more("key_prompt_tokens_total", "editor", "tiny") >= 1
    text = door.http.get("/metrics").text
    assert all(word not in text for word in ("secret-1", "made-up", rows[0]["sha256"]))


def test_the_cores_counters_are_counters(door: Door) -> None:
    deadline = time.monotonic() + 10
    wanted = {
        "num_preemptions_total": 4,
        "prefix_cache_queries_total": 50,
        "prefix_cache_hits_total": 20,
        "spec_decode_num_draft_tokens_total": 9,
        "spec_decode_num_accepted_tokens_total": 6,
    }
    while (found := {name: of(door).get((name, ())) for name in wanted}) != wanted:
        assert time.monotonic() < deadline, found
        time.sleep(0.05)


def test_the_name_of_a_key_outlives_it(tmp_path: Path) -> None:
    file = tmp_path / "keys.json"
    names = KeyNames(file)
    assert (names.name("k1"), names.name("")) == (UNKNOWN_KEY, NO_KEY)
    file.write_text(json.dumps({"keys": [{"id": "k1", "name": "first", "sha256": "0"}]}))
    assert names.name("k1") == "first"
    file.write_text(json.dumps({"keys": [{"id": "k2", "name": "second", "sha256": "0"}]}))
    assert (names.name("k1"), names.name("k2")) == ("first", "second")
    file.write_text("damaged")
    assert names.name("k1") == "first"


def test_a_histogram_counts_as_prometheus_does() -> None:
    """A value on a bound lies below it."""
    histogram = Histogram("h", "Some.", (1, 2.5))
    for value in (0.5, 1, 2, 3, 100):
        histogram.observe(value)
    (family,) = histogram.collect()
    told = {(sample.name, sample.labels.get("le")): sample.value for sample in family.samples}
    assert [told["h_bucket", bound] for bound in ("1.0", "2.5", "+Inf")] == [2, 3, 5]
    assert (told["h_count", None], told["h_sum", None]) == (5, 106.5)


class Still:
    """A supervisor of nothing."""

    load = Load()
    state = State.READY


def make_metrics() -> Metrics:
    return Metrics(cast(Supervisor, Still()), lambda key_id: key_id)


class Sink:
    def send(self, message: object) -> None: ...

    async def receive(self) -> Any:
        await asyncio.Event().wait()


def test_tokens_are_timed_when_they_come_and_not_when_they_are_read() -> None:
    """Three outputs that a slow reader takes at once have two gaps."""
    metrics = make_metrics()
    client = CoreClient(Sink())
    watch = metrics.stopwatch(1, "m", "")
    generation = client.start([1], SamplingParams(), watch=watch)
    for reason in (None, None, FinishReason.LENGTH):
        output = TokenOutput(request_id=generation.request_id, token_ids=(5,), finish_reason=reason)
        client.deliver(Outputs([output]))
    before = samples(metrics.text().decode())
    assert before["inter_token_latency_seconds_count", ()] == 2
    assert before["e2e_request_latency_seconds_count", ()] == 0
    merged = generation.take()
    watch.read(len(merged.token_ids))
    watch.finished(FinishReason.LENGTH, 0)
    after = samples(metrics.text().decode())
    assert after["e2e_request_latency_seconds_sum", ()] >= after["inter_token_latency_seconds_sum", ()]
    assert after["request_generation_tokens_sum", ()] == 3


def test_a_generation_knows_that_its_core_is_gone() -> None:
    client = CoreClient(Sink())
    generation = client.start([1], SamplingParams())
    assert not generation.failed
    client.fail("over")
    assert generation.failed
    with pytest.raises(EngineGoneError):
        generation.take()


def test_what_vllm_counts_by_reason_are_outcomes() -> None:
    metrics = make_metrics()
    metrics.count(Figures(), Figures(finished={"stop": 3, "abort": 2}))
    found = samples(metrics.text().decode())
    assert found["requests_total", ("stop",)] == 3
    assert found["requests_total", ("aborted",)] == 2
