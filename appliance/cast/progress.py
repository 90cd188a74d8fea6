"""Progress of a cast: a bar on a terminal, otherwise a line every 10%."""

from __future__ import annotations

import time
from types import TracebackType
from typing import Self

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
from rich.progress import Progress as Bar

from kernels.cast.build import Order


class Progress:
    """Called by `build` after each kernel and module."""

    def __init__(self, order: Order) -> None:
        self._total = len(order.variants) + len(order.modules)
        self._done = 0
        self._console = Console(stderr=True, highlight=False)
        self._bar = Bar(
            TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn(),
            console=self._console, transient=True, disable=not self._console.is_terminal,
        )  # fmt: skip
        self._task = self._bar.add_task(f"Casting for {order.architecture.name}", total=self._total)
        self._started = time.monotonic()

    def __enter__(self) -> Self:
        self._bar.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._bar.stop()

    def __call__(self, name: str) -> None:
        self._done += 1
        self._bar.update(self._task, completed=self._done)
        tenths = self._done * 10 // self._total
        if not self._console.is_terminal and tenths > (self._done - 1) * 10 // self._total:
            seconds = time.monotonic() - self._started
            self._console.print(
                f"{self._done:,} of {self._total:,} done after {seconds:.0f} s, last: {name}", soft_wrap=True
            )
