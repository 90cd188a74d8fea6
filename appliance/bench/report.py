"""The result of a load, as data: what `--json` writes, and what the terminal and the page show."""

from __future__ import annotations

from typing import Final, Literal

import msgspec

from appliance.bench.distribution import Distribution
from appliance.bench.load import Load
from appliance.bench.measurement import Measurement
from appliance.bench.server import OPTIONAL, Form
from appliance.redaction import without_secrets

BARS: Final = 48
LATE_S: Final = 0.05
BUSY_SHARE: Final = 0.85
SEVERAL_TOKENS: Final = 1.05

Loop = Literal["closed", "open"]


class Durations(msgspec.Struct, frozen=True, kw_only=True):
    """Seconds. `histogram` has (from, to, how many)."""

    count: int
    mean: float
    p50: float
    p90: float
    p95: float
    p99: float
    least: float
    most: float
    histogram: list[tuple[float, float, int]] = []


class Latencies(msgspec.Struct, frozen=True, kw_only=True):
    time_to_first_token: Durations
    inter_token: Durations
    time_per_output_token: Durations
    end_to_end: Durations


class FailureCount(msgspec.Struct, frozen=True, kw_only=True):
    kind: str
    count: int
    first_message: str


class Throughput(msgspec.Struct, frozen=True, kw_only=True):
    """Sums over steps of `step_s` seconds."""

    step_s: float
    output_tokens: list[float]
    answers: list[float]


class LoadShape(msgspec.Struct, frozen=True, kw_only=True):
    """What was asked for. Lengths in tokens; `input_tokens` is None for the prompts of a file."""

    loop: Loop
    concurrency: int
    rate: float | None = None
    arrivals: str | None = None
    input_tokens: int | None
    output_tokens: int
    requests: int | None
    seconds: float | None
    warmup: int
    seed: int


class Report(msgspec.Struct, frozen=True, kw_only=True):
    schema: int = 1
    url: str
    model: str
    api: str
    started: str
    load: LoadShape
    interrupted: bool
    seconds: float
    requests: int
    completed: int
    failed: int
    unfinished: int
    prompt_tokens: int
    output_tokens: int
    requests_per_s: float
    output_tokens_per_s: float
    total_tokens_per_s: float
    latency_s: Latencies
    failures: list[FailureCount]
    throughput: Throughput
    notes: list[str]


def make_report(
    measured: Measurement, form: Form, *, url: str, started: str, shape: LoadShape, interrupted: bool
) -> Report:
    seconds = measured.seconds
    timeline = measured.timeline

    def rate(count: int) -> float:
        return count / seconds if seconds else 0.0

    return Report(
        url=without_secrets(url),
        model=form.model,
        api=form.api,
        started=started,
        load=shape,
        interrupted=interrupted,
        seconds=seconds,
        requests=measured.begun,
        completed=measured.completed,
        failed=sum(failure.count for failure in measured.failures.values()),
        unfinished=measured.unfinished,
        prompt_tokens=measured.prompt_tokens,
        output_tokens=measured.output_tokens,
        requests_per_s=rate(measured.completed),
        output_tokens_per_s=rate(measured.output_tokens),
        total_tokens_per_s=rate(measured.output_tokens + measured.prompt_tokens),
        latency_s=Latencies(
            time_to_first_token=durations(measured.first_token),
            inter_token=durations(measured.inter_token),
            time_per_output_token=durations(measured.per_output_token),
            end_to_end=durations(measured.end_to_end),
        ),
        failures=[
            FailureCount(kind=kind, count=failure.count, first_message=failure.first_message)
            for kind, failure in sorted(measured.failures.items(), key=lambda item: -item[1].count)
        ],
        throughput=Throughput(
            step_s=timeline.step_s if timeline else 1.0,
            output_tokens=list(timeline.tokens) if timeline else [],
            answers=list(timeline.answers) if timeline else [],
        ),
        notes=list(_notes(measured, form, shape)),
    )


def durations(distribution: Distribution) -> Durations:
    at = distribution.percentile
    return Durations(
        count=distribution.count,
        mean=distribution.mean,
        p50=at(50),
        p90=at(90),
        p95=at(95),
        p99=at(99),
        least=distribution.least if distribution.count else 0.0,
        most=distribution.most,
        histogram=distribution.histogram(BARS),
    )


def load_shape(load: Load, *, input_tokens: int | None, output_tokens: int, warmup: int) -> LoadShape:
    is_open = load.rate is not None
    return LoadShape(
        loop="open" if is_open else "closed",
        concurrency=load.concurrency,
        rate=load.rate,
        arrivals=load.arrivals if is_open else None,
        input_tokens=input_tokens,
        output_tokens=output_tokens,
        requests=load.requests,
        seconds=load.seconds,
        warmup=warmup,
        seed=load.seed,
    )


def _notes(measured: Measurement, form: Form, shape: LoadShape) -> list[str]:
    """What a reader of the figures should know."""
    notes = []
    done = measured.completed
    for name in OPTIONAL:
        if name not in form.optional:
            notes.append(f"The server does not accept {name}, so it was left out.")
    if measured.short:
        asked, mean = shape.output_tokens, measured.output_tokens / done
        notes.append(f"{measured.short:,} of {done:,} answers ended before {asked:,} tokens; the mean is {mean:,.1f}.")
    if done and not measured.usage_told:
        notes.append("The server does not report usage, so each event of a stream counts as one token.")
    elif measured.events and measured.output_tokens / measured.events > SEVERAL_TOKENS:
        several = measured.output_tokens / measured.events
        notes.append(
            f"An event carries {several:.1f} tokens on average; inter-token latency is the time between events."
        )
    if measured.not_sent:
        notes.append(
            f"{measured.not_sent:,} arrivals were never sent: {shape.concurrency:,} requests were already in flight. "
            "The server is slower than the rate: lower --rate, or raise --concurrency."
        )
    elif done and measured.late.percentile(99) > LATE_S:
        late = measured.late.percentile(99)
        notes.append(
            f"1% of the requests were sent {late:.2f} s and more after they were due; that time counts as latency."
        )
    if measured.processor_share > BUSY_SHARE:
        notes.append(
            f"This program used {measured.processor_share:.0%} of a processor, so it may have been the limit. Lower "
            "the load, or run several at once."
        )
    return notes
