"""`ingot selftest`: does the running engine still answer what the bundled model is known to answer?"""

from __future__ import annotations

import contextlib
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from appliance.selftest.replay import Engine, Replayed

DEFAULT_URL = "http://127.0.0.1:8000"

DIFFERS = 1
CANNOT = 2


@click.command()
@click.option(
    "--url", help=f"A running engine. [default: the state folder's, then {DEFAULT_URL}, then a temporary one]"
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON for programs.")
@click.option(
    "--record",
    "record_to",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Record the engine's answers in this file instead of comparing them.",
)
def selftest(url: str | None, as_json: bool, record_to: Path | None) -> None:
    """Replay the bundled model's known answers through the whole engine and compare them.

    Exits with 1 when an answer differs, and with 2 when there is no engine to ask.
    """
    from appliance.home import Home
    from appliance.selftest import replay

    try:
        with contextlib.ExitStack() as stack:
            home = Home.from_environment()
            url = url or replay.running_engine([*replay.own_urls(home)[-1:], DEFAULT_URL])
            if url is None:
                click.echo("No engine answers: starting a temporary one with the bundled model.", err=True)
                url = stack.enter_context(replay.temporary_engine())
            engine = replay.Engine(url, replay.key_for(url, home))
            engine.served()  # says at once when nobody is there
            if record_to is not None:
                _record(engine, record_to)
                return
            differs = _compare(engine, as_json)
    except replay.CannotReplayError as error:
        click.echo(str(error), err=True)
        sys.exit(CANNOT)
    if differs:
        sys.exit(DIFFERS)


def _compare(engine: Engine, as_json: bool) -> bool:
    """Prints how each answer went; whether any differs."""
    import msgspec

    from appliance.selftest.answers import read_known
    from appliance.selftest.replay import CannotReplayError, replay

    try:
        known = read_known()
    except FileNotFoundError:
        raise CannotReplayError("There are no known answers. Create them with --record.") from None
    results = list(replay(engine, known))
    differs = any(result.difference is not None for result in results)
    if as_json:
        click.echo(msgspec.json.encode({"ok": not differs, "answers": results}))
    else:
        _print_table(results)
    return differs


def _print_table(results: list[Replayed]) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table("Question", "Tokens", "Largest logprob difference", "Seconds", "Result")
    for each in results:
        row = (str(each.tokens), f"{each.apart:.2e}", f"{each.seconds:.2f}", each.difference or "same")
        table.add_row(each.question, *row, style="red" if each.difference else None)
    console = Console()
    console.print(table)
    wrong = sum(each.difference is not None for each in results)
    console.print(f"{len(results) - wrong:,} of {len(results):,} answers match.")


def _record(engine: Engine, path: Path) -> None:
    import msgspec

    from appliance.selftest.answers import TOLERANCE
    from appliance.selftest.questions import selftest_questions
    from appliance.selftest.replay import record

    known = record(engine, selftest_questions(), TOLERANCE)
    answers = ",\n".join(msgspec.json.encode(answer).decode() for answer in known.answers)
    head = msgspec.json.encode({"model_digest": known.model_digest, "tolerance": known.tolerance}).decode()
    path.write_text(f'{head[:-1]},"answers":[\n{answers}\n]}}\n')  # an answer a line, for whoever reads the change
    click.echo(f"{len(known.answers)} answers of {known.model_digest} are in {path}.", err=True)
