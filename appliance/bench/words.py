"""A report's figures in words, for the terminal and the page."""

from __future__ import annotations

from typing import Final

from appliance.bench.report import Report

# Of each kind of latency in a report: its title, and what it is.
LATENCIES: Final = {
    "time_to_first_token": ("Time to first token", "from the request to its first token"),
    "inter_token": ("Inter-token", "between two tokens of an answer"),
    "time_per_output_token": ("Per output token", "mean of an answer after its first token"),
    "end_to_end": ("End to end", "from the request to its last token"),
}


def duration(seconds: float) -> str:
    if seconds >= 1:
        return f"{seconds:,.0f} s" if seconds >= 100 else f"{seconds:.2f} s"
    milliseconds = 1e3 * seconds
    if milliseconds < 0.1:
        return f"{1e6 * seconds:.0f} µs"
    digits = 0 if milliseconds >= 100 else 1 if milliseconds >= 10 else 2
    return f"{milliseconds:.{digits}f} ms"


def on_axis(seconds: float) -> str:
    """A round duration."""
    return f"{seconds:,g} s" if seconds >= 1 else f"{1e3 * seconds:g} ms"


def describe_load(report: Report) -> str:
    load = report.load
    if load.loop == "open":
        kind = "Poisson arrivals" if load.arrivals == "poisson" else "arrivals at a constant rate"
        how = f"{load.rate:,g} requests/s, {kind}, at most {load.concurrency:,} in flight"
    else:
        how = f"{load.concurrency:,} at a time"
    given = "prompts of a file" if load.input_tokens is None else f"{load.input_tokens:,} tokens in"
    return f"{how}; {given}, up to {load.output_tokens:,} out; seed {load.seed}"


def describe_requests(report: Report) -> str:
    parts = [f"{report.completed:,} of {report.requests:,} requests answered in {report.seconds:,.1f} s"]
    if report.failed:
        parts.append(f"{report.failed:,} failed")
    if report.unfinished:
        parts.append(f"{report.unfinished:,} cut off")
    return ", ".join(parts) + ("; stopped early" if report.interrupted else "") + "."


def figures(report: Report) -> list[tuple[str, str]]:
    done = report.completed
    return [
        ("Output tokens/s", f"{report.output_tokens_per_s:,.1f}"),
        ("Tokens/s, in and out", f"{report.total_tokens_per_s:,.1f}"),
        ("Requests/s", f"{report.requests_per_s:,.2f}"),
        ("Mean tokens in / out", f"{_mean(report.prompt_tokens, done)} / {_mean(report.output_tokens, done)}"),
    ]


def _mean(tokens: int, answers: int) -> str:
    mean = tokens / answers
    return f"{mean:,.0f}" if mean >= 100 else f"{mean:,.1f}"
