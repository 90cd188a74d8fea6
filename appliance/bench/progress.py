"""How far a load has come, on a terminal."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from appliance.bench.load import Load
from appliance.bench.measurement import Measurement

REFRESH_S = 0.25


async def shown_while(work: Awaitable[None], measurement: Measurement, load: Load) -> None:
    """A line on standard error, which is gone afterwards."""
    columns = (TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn())
    running = asyncio.ensure_future(work)
    began = time.perf_counter()
    with Progress(*columns, console=Console(stderr=True), transient=True, auto_refresh=False) as progress:
        task = progress.add_task("", total=1.0)
        while not running.done():
            passed = time.perf_counter() - began
            progress.update(task, description=_line(measurement, passed), completed=_share(measurement, load, passed))
            progress.refresh()
            await asyncio.wait({running}, timeout=REFRESH_S)
    await running


def _line(measured: Measurement, passed: float) -> str:
    failed = sum(failure.count for failure in measured.failures.values())
    speed = measured.output_tokens / passed if passed else 0.0
    problem = f", {failed:,} failed" if failed else ""
    return f"{measured.completed:,} answered, {measured.in_flight:,} in flight{problem}, {speed:,.0f} tok/s"


def _share(measured: Measurement, load: Load, passed: float) -> float:
    ended = measured.begun - measured.in_flight
    shares = [ended / load.requests if load.requests else 0.0, passed / load.seconds if load.seconds else 0.0]
    return min(max(shares), 1.0)
