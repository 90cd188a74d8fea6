"""What `ingot profile` prints: tables and sentences for people, JSON for programs. Rich is imported when something is
shown to a person."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from appliance.profile.schema import BY_KEY, Problem
from appliance.protocol import Finding
from console import formats
from console.authors import done_by
from console.formats import counted
from console.launches.outcome import standing
from console.profiles.activator import Activated
from console.profiles.errors import InvalidDocument, ProfileRefusal, Refused
from console.profiles.history import Outcome
from console.profiles.records import ProfileHistory, ProfileSummary, SavedRevision
from console.profiles.transfer import Planned, exported
from console.profiles.words import shown

if TYPE_CHECKING:
    from rich.console import Console

WIDE = 100_000
"""Columns where the output is no terminal: one line per row, nothing wrapped or cut."""
MODEL_WIDTH = 32
"""Characters of a model's path on a terminal; of a longer one its end is shown."""
SENTENCES = ("Last launch", "Note")
"""Columns that wrap on a terminal; no other does."""

GOOD, DIM, BAD, WARN = "green", "dim", "red", "yellow"
STATE_STYLES = {
    "ready": GOOD,
    "failed": BAD,
    "cut off": BAD,
    "refused": BAD,
    "hung": "magenta",
    "starting": WARN,
    "preflight": WARN,
    "draining": WARN,
}


def as_json(value: Any) -> str:
    return msgspec.json.format(msgspec.json.encode(value)).decode()


def refusal_as_data(error: ProfileRefusal) -> dict[str, Any]:
    """A refusal for programs, with all that is known of it."""
    said: dict[str, Any] = {"error": error.message, "remedy": error.remedy, "field": error.field, "value": error.value}
    if error.code:
        said["code"] = error.code
    if isinstance(error, InvalidDocument):
        said["problems"] = error.problems
    if isinstance(error, Refused):
        said |= {"findings": error.findings, "attempt": error.launch}
    return said


def profiles(summaries: Sequence[ProfileSummary], running: str | None) -> None:
    """`running` is the launch that may still run."""
    if not summaries:
        _out().print("There are no profiles. Import one with `ingot profile import FILE`.")
        return
    rows = [
        (
            summary.name,
            (f"active r{summary.active}", GOOD) if summary.active else "",
            _end_of_path(summary.model),
            summary.engine,
            f"{summary.latest.label}, {_ago(summary.latest.created)}",
            _outcome(summary.last_launch, running),
        )
        for summary in summaries
    ]
    _table(("Name", "", "Model", "Engine", "Last revision", "Last launch"), rows)


def profile(revision: SavedRevision, history: ProfileHistory, running: str | None) -> None:
    out = _out()
    out.print(revision.what, style="bold", end="")
    saved = done_by(f"saved {_ago(revision.created)}", revision.author)
    out.print(f"  {saved}{', active' if revision.active else ''}", style=DIM)
    if revision.note:
        out.print(revision.note)
    out.print()
    out.print(exported(revision, "yaml"))
    rows = [
        (
            other.label,
            ("active", GOOD) if other.active else "",
            done_by(_ago(other.created), other.author),
            _outcome(next(iter(history.outcomes.get(other.number, [])), None), running),
            other.note,
        )
        for other in history.revisions
    ]
    _table(("Revision", "", "Saved", "Last launch", "Note"), rows)


def plan(planned: Sequence[Planned]) -> None:
    """What an import would do."""
    words = {"create": "new profile", "revise": "new revision", "nothing": "no change: it already exists here"}
    out = _out()
    for item in planned:
        if item.does == "refuse":
            out.print(f"{item.source}: cannot be imported", style=BAD)
            _problems(out, item.problems)
            continue
        out.print(f"{item.name} r{item.revision}", style="bold", end="")
        out.print(f"  {words[item.does]}, from {item.source}", style=DIM)
        for change in item.changes:
            setting = BY_KEY.get(change.key)
            if item.does == "create":
                out.print(f"  {change.key}: {shown(setting, change.after)}")
            else:
                out.print(f"  {change.key}: ", end="")
                out.print(shown(setting, change.before), style=BAD, end="")
                out.print(" -> ", end="")
                out.print(shown(setting, change.after), style=GOOD)
    if any(item.problems for item in planned):
        out.print("Nothing was imported.")


def imported(planned: Sequence[Planned], saved: Sequence[SavedRevision]) -> None:
    out = _out()
    if saved:
        out.print(f"Imported {', '.join(revision.what for revision in saved)}.")
    elif all(item.does == "nothing" for item in planned):
        out.print("Nothing was changed.")
    else:
        out.print("Nothing was saved: this was a dry run. To import, add --yes.")


def activated(result: Activated) -> None:
    out = _out()
    _findings(out, result.findings)
    out.print(f"{result.what} is active. ", end="")
    if result.waits_for is None:
        out.print("The engine restarts with it once running requests finish. Follow it with `ingot logs -f`.")
    elif result.waits_for:
        count = counted(result.waits_for, "running request finishes", "running requests finish")
        out.print(f"The engine restarts with it once {count}. Follow it with `ingot logs -f`.")
    elif result.restarted:
        out.print("The engine is restarting with it. Follow it with `ingot logs -f`.")
    else:
        out.print("No console is running here. The engine will use it from its next start.")


def refusal(error: ProfileRefusal) -> None:
    """On the standard error: what happened, everything that was found, what to do."""
    err = _out(stderr=True)
    err.print(f"Error: {error.message}", style=BAD)
    if isinstance(error, Refused):
        _findings(err, error.findings)
        if error.transient:
            err.print("This may pass. To end what runs and have the launch check again, add --anyway.", style=DIM)
    elif isinstance(error, InvalidDocument):
        _problems(err, error.problems)
    elif error.remedy:
        err.print(error.remedy)


def _out(*, stderr: bool = False) -> Console:
    from rich.console import Console

    stream = sys.stderr if stderr else sys.stdout
    width = None if stream.isatty() else WIDE
    return Console(stderr=stderr, markup=False, highlight=False, emoji=False, width=width, soft_wrap=width is None)


def _table(head: Sequence[str], rows: Sequence[Sequence[str | tuple[str, str]]]) -> None:
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False, header_style=DIM)
    for title in head:
        table.add_column(title, no_wrap=title not in SENTENCES)
    for row in rows:
        table.add_row(*(Text(cell) if isinstance(cell, str) else Text(cell[0], style=cell[1]) for cell in row))
    _out().print(table)


def _end_of_path(path: str) -> str:
    if len(path) <= MODEL_WIDTH or not sys.stdout.isatty():
        return path
    return f"…{path[1 - MODEL_WIDTH :]}"


def _outcome(outcome: Outcome | None, running: str | None) -> str | tuple[str, str]:
    if outcome is None:
        return ("never launched", DIM)
    word = standing(outcome.state, runs=outcome.launch == running).word
    after = f" after {formats.seconds(outcome.ready_after_s)}" if outcome.ready_after_s is not None else ""
    cause = f": {outcome.cause}" if outcome.cause else ""
    return (f"{word}{after if word == 'ready' else ''}{cause}, {_ago(outcome.started)}", STATE_STYLES.get(word, ""))


def _findings(out: Console, findings: Sequence[Finding]) -> None:
    for finding in findings:
        style = {"error": BAD, "warning": WARN}.get(finding.severity, "")
        out.print(f"  {finding.severity}: {finding.message}", style=style)
        if finding.fix:
            out.print(f"    {finding.fix.text}")
            if finding.fix.command:
                out.print(f"    $ {finding.fix.command}")
            if finding.fix.look:
                out.print(f"    To see more: $ {finding.fix.look}")


def _problems(out: Console, problems: Sequence[Problem]) -> None:
    for problem in problems:
        out.print(f"  {problem}", style="")


def _ago(moment: float) -> str:
    past = max(0.0, time.time() - moment)
    return "just now" if past < 5 else f"{formats.coarse(past)} ago"
