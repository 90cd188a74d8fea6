"""How far an acceptance has come: a line on a terminal, which is gone afterwards, or a line a section elsewhere."""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from rich.progress import Progress as Bar
    from rich.progress import TaskID

REFRESH_S: Final = 0.25


class Progress:
    """`tell` says what is done now, and how much of it."""

    def __init__(self) -> None:
        self.text = ""
        self.share = 0.0
        self._shown = ""

    def tell(self, text: str, done: float = 0, total: float = 0) -> None:
        self.text, self.share = text, min(done / total, 1.0) if total else 0.0

    async def shown_while(self, work: Awaitable[None]) -> None:
        """Raises what `work` raises; cancelled, it cancels it."""
        running = asyncio.ensure_future(work)
        if not sys.stderr.isatty():
            await self._in_lines(running)
            return
        from rich.console import Console  # late: with rich, which takes long to import
        from rich.progress import BarColumn, TextColumn, TimeElapsedColumn
        from rich.progress import Progress as Bar

        columns = (TextColumn("{task.description}"), BarColumn(bar_width=20), TimeElapsedColumn())
        with Bar(*columns, console=Console(stderr=True), transient=True, auto_refresh=False) as bar:
            await self._on(bar, bar.add_task("", total=1.0), running)

    async def _on(self, bar: Bar, task: TaskID, running: asyncio.Future[None]) -> None:
        def refresh() -> None:
            bar.update(task, description=self.text, completed=self.share)
            bar.refresh()

        await self._watch(running, refresh)

    async def _in_lines(self, running: asyncio.Future[None]) -> None:
        began = time.monotonic()

        def line() -> None:
            section = self.text.partition(":")[0]
            if section != self._shown:
                self._shown = section
                print(f"[{time.monotonic() - began:6.1f} s] {section}", file=sys.stderr, flush=True)

        await self._watch(running, line)

    async def _watch(self, running: asyncio.Future[None], show: Callable[[], None]) -> None:
        try:
            while not running.done():
                show()
                await asyncio.wait({running}, timeout=REFRESH_S)
        except asyncio.CancelledError:
            running.cancel()
            await asyncio.wait({running})
            raise
        await running
