"""`ingot accept`: check a served model, and write the report that signs it off."""

from __future__ import annotations

import asyncio
import secrets
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

import click
from click.core import ParameterSource

from appliance.bench.command_options import (
    INTERRUPTED,
    KEY,
    NOT_MEASURABLE,
    SOME_FAILED,
    STDOUT,
    OutFile,
    check_out_files,
    positive,
    publish,
    read_key,
)

if TYPE_CHECKING:
    from appliance.accept.checks import Section
    from appliance.accept.oracle_file import OracleFile
    from appliance.accept.report import Report
    from appliance.accept.served_profile import Asked

DTYPES: Final = ("float32", "float16", "bfloat16", "fp8")
CHOSEN: Final = ("oracle", "needle", "mixed", "soak")
MOST_SEED: Final = 1_000_000_000
USUAL_DEPTHS: Final = "0,50,100"

F = TypeVar("F", bound=Callable[..., Any])
GivenFile = click.Path(path_type=Path)


def _split(text: str, least: float, most: float) -> list[float]:
    """Raises ValueError."""
    numbers = [float(part) for part in text.split(",")]
    if any(not least <= number <= most for number in numbers):
        raise ValueError
    return sorted(set(numbers))


def _lengths(_context: click.Context, parameter: click.Parameter, value: str | None) -> list[int]:
    try:
        return [int(number) for number in _split(value, 1, 1 << 24)] if value else []
    except ValueError:
        raise click.BadParameter(f"{value} is no list of lengths: write 1024,4096.", param=parameter) from None


def _depths(_context: click.Context, parameter: click.Parameter, value: str) -> list[float]:
    try:
        return [number / 100 for number in _split(value, 0, 100)]
    except ValueError:
        raise click.BadParameter(f"{value} is no list of percentages: write 0,50,100.", param=parameter) from None


def _sections(_context: click.Context, parameter: click.Parameter, value: str | None) -> list[str]:
    names = [name.strip() for name in value.split(",")] if value else list(CHOSEN)
    if unknown := [name for name in names if name not in CHOSEN]:
        known = ", ".join(CHOSEN)
        raise click.BadParameter(f"{unknown[0]!r} is not one of {known}.", param=parameter)
    return [name for name in CHOSEN if name in names]


def _tolerances(_context: click.Context, parameter: click.Parameter, value: tuple[str, ...]) -> dict[str, float]:
    from appliance.accept.tolerances import read_tolerances

    try:
        return read_tolerances(value)
    except ValueError as error:
        raise click.BadParameter(f"{error}.", param=parameter) from None


def of_the_server(command: F) -> F:
    """The options that say which server is asked, how."""
    for option in reversed((  # the last that is applied is the first of --help
        click.option("--profile", "source", metavar="PROFILE", help="The profile to run: a file, or the name of the "
                     "active profile. [default: the active profile; with --url, none]"),
        click.option("--url", help="A running server. [default: the one of the state folder]"),
        click.option("--model", help="The model to ask. [default: the profile's, or the one that the server has]"),
        click.option("--dtype", type=click.Choice(DTYPES), help="What the server computes in, where it does not tell."),
        click.option("--needle-lengths", "lengths", callback=_lengths, metavar="N,N", help="Lengths in tokens. "
                     "[default: an eighth, a quarter, a half and all of the context]"),
        click.option("--needle-depths", "depths", callback=_depths, metavar="P,P", default=USUAL_DEPTHS,
                     show_default=True, help="Where the fact stands, in percent of the text."),
        click.option("--seed", type=int, help="The same seed asks the same. [default: another one each time]"),
        click.option("--timeout", "timeout_s", type=float, callback=positive, default=600, show_default=True,
                     help="Seconds after which a request has failed."),
        click.option("--key-file", type=GivenFile, help=f"A file with the API key. [default: ${KEY}]"),
    )):  # fmt: skip
        command = option(command)
    return command


@click.group(invoke_without_command=True)
@of_the_server
@click.option("--oracle", "oracle_files", type=GivenFile, multiple=True, help="A file of `ingot accept record`.")
@click.option("--only", "sections", callback=_sections, metavar="NAME,NAME", help=f"Of {', '.join(CHOSEN)}.")
@click.option("--tolerance", "tolerances", callback=_tolerances, multiple=True, metavar="NAME=VALUE",
              help="A bound of the oracle's checks: max, mean, kl or top1. [default: by dtype]")  # fmt: skip
@click.option("--needle-score", type=click.FloatRange(0, 1), help="The share of needles that the model must find.")
@click.option("--rate", type=float, callback=positive, default=4, show_default=True, help="Mixed arrivals a second.")
@click.option("--mixed", "mixed_s", type=float, callback=positive, default=20, show_default=True,
              help="Seconds of mixed arrivals.")  # fmt: skip
@click.option("--soak", "soak_s", type=click.FloatRange(0), default=60, show_default=True, help="Seconds of the soak.")
@click.option("--concurrency", type=click.IntRange(1, 512), default=8, show_default=True,
              help="Requests in flight during the soak.")  # fmt: skip
@click.option(
    "--budget", "budget_s", type=float, callback=positive, help="End after so many seconds, whatever is left."
)
@click.option("--strict", is_flag=True, help="Accept only if every check was run.")
@click.option("--json", "json_file", type=OutFile, help='Write the report as JSON; "-" for standard output.')
@click.option("--html", "html_file", type=OutFile, help="Write the report as one page, to be signed.")
def accept(
    oracle_files: tuple[Path, ...],
    sections: list[Section],
    tolerances: dict[str, float],
    needle_score: float | None,
    rate: float,
    mixed_s: float,
    soak_s: float,
    concurrency: int,
    budget_s: float | None,
    strict: bool,
    json_file: Path | None,
    html_file: Path | None,
    **server: Any,
) -> None:
    """Check that a served model answers as it should, and report it for a signature.

    Compares its logprobs with an oracle's, looks for facts in texts of every length, mixes requests of all kinds, and
    keeps it under load for a while. What cannot be checked is reported as not run.

    Exits with 0 if it is accepted, 1 if not, 2 if it cannot be asked, does not fit or an option is wrong, and 130
    after Ctrl-C, with the report of what was checked until then.
    """
    context = click.get_current_context()
    if context.invoked_subcommand is not None:
        _refuse_misplaced(context)
        return
    oracles = [_oracle(path) for path in oracle_files]
    check_out_files(json_file, html_file)
    from appliance.accept.appliance_site import engine_memory, machine_here
    from appliance.accept.run import Acceptance, Options, StoppedError
    from appliance.bench.server import ServerError

    asked = _asked(server)
    options = Options(
        sections=sections,
        oracles=oracles,
        tolerances=tolerances,
        dtype=server["dtype"],
        lengths=server["lengths"],
        depths=server["depths"],
        needle_score=needle_score,
        rate=rate,
        mixed_s=mixed_s,
        soak_s=soak_s,
        concurrency=concurrency,
        budget_s=budget_s,
        strict=strict,
        seed=_seed(server),
        memory=partial(engine_memory, asked.home) if asked.is_own else lambda: None,
        here=machine_here(asked.home) if asked.is_own else None,
    )
    try:
        report = asyncio.run(Acceptance(asked.site, asked.profile, options).report())
    except StoppedError:
        click.echo("Ended before anything was checked.", err=True)
        sys.exit(INTERRUPTED)
    except ServerError as error:
        click.echo(f"Error: {error}", err=True)
        sys.exit(NOT_MEASURABLE)
    _write(report, json_file, html_file)
    sys.exit(INTERRUPTED if report.interrupted else 0 if report.verdict == "accepted" else SOME_FAILED)


@accept.command()
@click.argument("out", type=OutFile)
@of_the_server
@click.option(
    "--prompts", "prompt_file", type=GivenFile, help="A JSONL file of prompts. [default: texts of many kinds]"
)
@click.option("--output-tokens", type=click.IntRange(0, 4096), default=32, show_default=True, help="After each prompt.")
@click.option("--top", type=click.IntRange(1, 20), default=5, show_default=True, help="Likeliest tokens at a position.")
@click.option("--no-needles", is_flag=True, help="Record no needles.")
def record(out: Path, prompt_file: Path | None, output_tokens: int, top: int, no_needles: bool, **server: Any) -> None:
    """Record an oracle: what a server that you trust answers, for others to be compared with.

    OUT is the file to write; with a name that ends in .gz, it is packed.
    """
    from appliance.accept.oracle_file import write_oracle
    from appliance.bench.server import ServerError

    check_out_files(out, None)
    if out == STDOUT:
        raise click.UsageError("OUT is -: give the name of a file.")
    texts = _texts(prompt_file)
    asked = _asked(server)
    try:
        oracle = asyncio.run(
            asked.record(
                texts, tokens=output_tokens, top=top, lengths=server["lengths"],
                depths=[] if no_needles else server["depths"], seed=_seed(server), dtype=server["dtype"],
            )
        )  # fmt: skip
    except ServerError as error:
        click.echo(f"Error: {error}", err=True)
        sys.exit(NOT_MEASURABLE)
    try:
        write_oracle(out, oracle)
    except OSError as error:
        raise click.ClickException(f"{out} cannot be written: {error.strerror}.") from None
    found = sum(needle.found for needle in oracle.needles)
    needles = f", {found:,} of {len(oracle.needles):,} needles found" if oracle.needles else ""
    click.echo(f"Wrote {out}: {len(oracle.entries):,} prompts of {oracle.model.name}{needles}.", err=True)


def _refuse_misplaced(context: click.Context) -> None:
    """Options before a subcommand would have no effect."""
    for parameter in context.command.params:
        if context.get_parameter_source(str(parameter.name)) is ParameterSource.COMMANDLINE:
            name = parameter.opts[0]
            raise click.UsageError(f"{name} stands before {context.invoked_subcommand}: write it behind.")


def _asked(server: dict[str, Any]) -> Asked:
    from appliance.accept.served_profile import find_server

    return find_server(
        url=server["url"],
        source=server["source"],
        model=server["model"],
        given_key=read_key(server["key_file"]),
        timeout_s=server["timeout_s"],
    )


def _seed(server: dict[str, Any]) -> int:
    return secrets.randbelow(MOST_SEED) if server["seed"] is None else int(server["seed"])


def _oracle(path: Path) -> OracleFile:
    from appliance.accept.oracle_file import OracleError, read_oracle

    try:
        return read_oracle(path)
    except OSError as error:
        raise click.UsageError(f"--oracle {path} cannot be read: {error.strerror}.") from None
    except OracleError as error:
        raise click.UsageError(f"--oracle {path}: {error}.") from None


def _texts(path: Path | None) -> dict[str, str] | None:
    from appliance.bench.prompts import read_prompts

    if path is None:
        return None
    try:
        prompts = read_prompts(path, chat=False)
    except OSError as error:
        raise click.UsageError(f"--prompts {path} cannot be read: {error.strerror}.") from None
    except ValueError as error:
        raise click.UsageError(f"--prompts {path}: {error}.") from None
    return {f"prompt-{number}": prompt for number, prompt in enumerate(prompts, 1) if isinstance(prompt, str)}


def _write(report: Report, json_file: Path | None, html_file: Path | None) -> None:
    from appliance.accept.page import render
    from appliance.accept.printing import show
    from appliance.accept.report import as_json

    publish(as_json(report), partial(show, report), partial(render, report), json_file, html_file)
