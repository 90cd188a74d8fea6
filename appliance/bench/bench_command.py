"""`ingot bench`: put a load on a server, and tell how fast it answers."""

from __future__ import annotations

import asyncio
import resource
import secrets
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Final

import click
import msgspec

from appliance.bench.command_options import (
    INTERRUPTED,
    KEY,
    NOT_MEASURABLE,
    SOME_FAILED,
    OutFile,
    check_out_files,
    positive,
    publish,
    read_key,
)
from appliance.bench.load import Arrivals, Load
from appliance.bench.prompts import Prompt, from_file
from appliance.bench.report import Report
from appliance.bench.run import Options, Run, StoppedError
from appliance.bench.server import PATHS, ServerError
from appliance.bench.target import Target, read_url

DEFAULT_REQUESTS: Final = 100
DEFAULT_CONCURRENCY: Final = 8
OPEN_CONCURRENCY: Final = 512
SPARE_FILES: Final = 64  # what this process has open besides connections
MOST_SEED: Final = 1_000_000_000  # of those chosen here: short enough to be typed again

Count = partial(click.IntRange, max=10_000_000)


@click.command()
@click.argument("url")
@click.option("--model", help="The model to ask. [default: the one that the server has]")
@click.option("--api", type=click.Choice(list(PATHS)), default="completions", show_default=True)
@click.option(
    "--concurrency", type=click.IntRange(1, 10_000),
    help=f"Requests in flight: always as many (closed loop), or with --rate at most. [default: {DEFAULT_CONCURRENCY}; "
    f"with --rate {OPEN_CONCURRENCY}]",
)  # fmt: skip
@click.option(
    "--rate", type=float, callback=positive, help="Requests per second, however fast the server is (open loop)."
)
@click.option("--arrivals", type=click.Choice(["poisson", "constant"]), help="With --rate. [default: poisson]")
@click.option("--requests", type=Count(1), help=f"End after so many. [default: {DEFAULT_REQUESTS} without --seconds]")
@click.option("--seconds", type=float, callback=positive, help="Begin no request later than this.")
@click.option("--warmup", type=Count(0), default=0, show_default=True, help="Requests before, which are not measured.")
@click.option("--input-tokens", type=Count(1), help="Length of the prompts of random words. [default: 128]")
@click.option(
    "--prompts", "prompt_file", type=click.Path(path_type=Path), help="A JSONL file of prompts to ask in turn."
)
@click.option("--output-tokens", type=Count(1), default=128, show_default=True, help="Length of the answers.")
@click.option(
    "--seed", type=int, help="The same seed gives the same prompts and arrivals. [default: another one each time]"
)
@click.option("--timeout", "timeout_s", type=float, callback=positive, default=600, show_default=True,
              help="Seconds after which a request has failed.")  # fmt: skip
@click.option("--key-file", type=click.Path(path_type=Path), help=f"A file with the API key. [default: ${KEY}]")
@click.option("--json", "json_file", type=OutFile, help='Write the report as JSON; "-" for standard output.')
@click.option("--html", "html_file", type=OutFile, help="Write the report as one page with plots.")
def bench(
    url: str,
    model: str | None,
    api: str,
    concurrency: int | None,
    rate: float | None,
    arrivals: Arrivals | None,
    requests: int | None,
    seconds: float | None,
    warmup: int,
    input_tokens: int | None,
    prompt_file: Path | None,
    output_tokens: int,
    seed: int | None,
    timeout_s: float,
    key_file: Path | None,
    json_file: Path | None,
    html_file: Path | None,
) -> None:
    """Measure an OpenAI-compatible server under load.

    URL is its address, such as http://127.0.0.1:8000. With --rate, latencies count from when a request was due, so
    a server that falls behind cannot hide it.

    Exits with 1 if a request failed, 2 if the server cannot be measured, and 130 after Ctrl-C, with the report of what
    was measured until then, if the load had begun.
    """
    if arrivals is not None and rate is None:
        raise click.UsageError(f"--arrivals {arrivals} needs --rate: give the requests per second.")
    if prompt_file is not None and input_tokens is not None:
        raise click.UsageError("--prompts and --input-tokens exclude each other: leave one out.")
    target = _target(url, key_file)
    prompts = _prompts(prompt_file, chat=api == "chat")
    load = Load(
        concurrency=concurrency or (OPEN_CONCURRENCY if rate else DEFAULT_CONCURRENCY),
        requests=requests or (None if seconds else DEFAULT_REQUESTS),
        seconds=seconds,
        rate=rate,
        arrivals=arrivals or "poisson",
        seed=secrets.randbelow(MOST_SEED) if seed is None else seed,
    )
    _allow_connections(load.concurrency)
    check_out_files(json_file, html_file)
    options = Options(load, api, model, prompts, input_tokens or 128, output_tokens, warmup, timeout_s)
    try:
        report = asyncio.run(Run(target, options).report())
    except StoppedError:
        click.echo("Interrupted before the load began.", err=True)
        sys.exit(INTERRUPTED)
    except ServerError as error:
        click.echo(f"Error: {error}", err=True)
        sys.exit(NOT_MEASURABLE)
    _write(report, json_file, html_file)
    sys.exit(INTERRUPTED if report.interrupted else SOME_FAILED if report.failed else 0)


def _target(url: str, key_file: Path | None) -> Target:
    try:
        return read_url(url, read_key(key_file))
    except ValueError as error:
        raise click.BadParameter(f"{error}.", param_hint="'URL'") from None


def _prompts(path: Path | None, *, chat: bool) -> Iterator[Prompt] | None:
    if path is None:
        return None
    try:
        return from_file(path, chat=chat)
    except OSError as error:
        raise click.UsageError(f"--prompts {path} cannot be read: {error.strerror}.") from None
    except ValueError as error:
        raise click.UsageError(f"--prompts {path}: {error}.") from None


def _allow_connections(wanted: int) -> None:
    """Raise this process's limit of open files to what the load needs, as far as the machine allows."""
    needed = wanted + SPARE_FILES
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != resource.RLIM_INFINITY and soft < needed:
        if hard != resource.RLIM_INFINITY and hard < needed:
            raise click.UsageError(
                f"--concurrency {wanted:,} needs {needed:,} open files, and this machine allows {hard:,}: use at most "
                f"{hard - SPARE_FILES:,}, or raise the limit (ulimit -Hn)."
            )
        resource.setrlimit(resource.RLIMIT_NOFILE, (needed, hard))


def _write(report: Report, json_file: Path | None, html_file: Path | None) -> None:
    from appliance.bench.page import render
    from appliance.bench.printing import show

    text = msgspec.json.format(msgspec.json.encode(report)).decode() + "\n"
    publish(text, partial(show, report), partial(render, report), json_file, html_file)
