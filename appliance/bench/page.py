"""A report as one page that needs nothing else: no network, no script, no other file."""

from __future__ import annotations

from jinja2 import Environment, PackageLoader, StrictUndefined

from appliance import __version__
from appliance.bench.plots import histogram, throughput
from appliance.bench.report import Report
from appliance.bench.words import LATENCIES, describe_load, describe_requests, duration, figures

ROWS = {"mean": "mean", "p50": "p50", "p90": "p90", "p95": "p95", "p99": "p99", "most": "max"}


def render(report: Report) -> str:
    environment = Environment(
        loader=PackageLoader("appliance.bench", "."), autoescape=True, undefined=StrictUndefined, trim_blocks=True
    )
    latency = report.latency_s
    plots = [
        (*LATENCIES[name], histogram(row))
        for name in ("time_to_first_token", "inter_token")
        if (row := getattr(latency, name)).count
    ]
    return environment.get_template("report.html").render(
        report=report,
        version=__version__,
        requests=describe_requests(report),
        load=describe_load(report),
        figures=figures(report) if report.completed else [],
        latencies=[(*words, getattr(latency, name)) for name, words in LATENCIES.items()],
        rows=ROWS,
        plots=plots,
        curve=throughput(report.throughput, report.seconds) if report.completed and report.seconds else None,
        duration=duration,
    )
