"""Progress output: a bar on a terminal; otherwise a line at most every few seconds."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

import click

LINE_SECONDS: Final = 5.0


@contextmanager
def shown(quiet: bool) -> Iterator[Callable[[str, int, int], None]]:
    """A `report(what, done, total)` in bytes, on standard error."""
    if quiet:
        yield lambda what, done, total: None
    elif sys.stderr.isatty():
        yield from _bars()
    else:
        yield _Lines().report


class _Lines:
    def __init__(self) -> None:
        self._what = ""
        self._next = 0.0

    def report(self, what: str, done: int, total: int) -> None:
        now = time.monotonic()
        if what == self._what and now < self._next and done < total:
            return
        if what == self._what and self._next == float("inf"):
            return  # it was told as done
        self._what, self._next = what, now + LINE_SECONDS if done < total else float("inf")
        share = f"{100 * done // total:3d}%" if total else "100%"
        click.echo(f"{what}: {share}, {done / 2**20:,.0f} of {total / 2**20:,.0f} MiB", err=True)


def _bars() -> Iterator[Callable[[str, int, int], None]]:
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn, TransferSpeedColumn

    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        DownloadColumn(binary_units=True),
        TransferSpeedColumn(),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=Console(stderr=True)) as progress:
        tasks: dict[str, object] = {}

        def report(what: str, done: int, total: int) -> None:
            if what not in tasks:
                tasks[what] = progress.add_task(what, total=total)
            progress.update(tasks[what], completed=done, total=total)  # type: ignore[arg-type]

        yield report
