"""One acceptance: a look at the server, the sections one after another, the report."""

from __future__ import annotations

import asyncio
import signal
import time
from collections.abc import Coroutine, Sequence
from typing import Any, Final, NamedTuple, Protocol

from appliance.accept.appliance_site import OfProfile
from appliance.accept.checks import CHECKS, SECTIONS, Section, section_of
from appliance.accept.identity import environment, identify, running
from appliance.accept.mixed import MixedSection
from appliance.accept.needle import NeedleSection, check_lengths
from appliance.accept.oracle_checks import OracleSection
from appliance.accept.oracle_file import OracleFile
from appliance.accept.progress import Progress
from appliance.accept.report import Book, OracleUsed, Report, summary_of, verdict_of
from appliance.accept.site import Site
from appliance.accept.soak import Memory, SoakSection
from appliance.redaction import without_secrets

INTERRUPTED: Final = "it was interrupted"


class Options(NamedTuple):
    """`sections` are those asked for; `budget_s` ends the run. See the command for the others."""

    sections: Sequence[Section]
    oracles: Sequence[OracleFile]
    tolerances: dict[str, float]
    dtype: str | None
    lengths: Sequence[int]
    depths: Sequence[float]
    needle_score: float | None
    rate: float
    mixed_s: float
    soak_s: float
    concurrency: int
    budget_s: float | None
    strict: bool
    seed: int
    memory: Memory
    here: dict[str, Any] | None


class Runs(Protocol):
    async def run(self, book: Book, progress: Progress) -> None: ...


class StoppedError(Exception):
    """Ctrl-C came before anything was checked."""


class Acceptance:
    """Ctrl-C ends it at once, and the report tells what was checked until then."""

    def __init__(self, site: Site, profile: OfProfile | None, options: Options) -> None:
        self._site = site
        self._profile = profile
        self._options = options
        self._book = Book()
        self._progress = Progress()
        self._interrupted = False
        self._environment: list[tuple[str, str]] = []
        self._task: asyncio.Task[None] | None = None

    async def report(self) -> Report:
        """Raises ServerError, StoppedError."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, self._stop)
        began, started = time.monotonic(), time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
        work = self._checks()
        self._task = task = asyncio.create_task(self._progress.shown_while(work))
        why = ""
        try:
            async with asyncio.timeout(self._options.budget_s):
                await task
        except asyncio.CancelledError:
            if not self._interrupted:
                raise
            why = INTERRUPTED
        except TimeoutError:
            why = f"the time budget of {self._options.budget_s:g} s was used up"
        finally:
            self._site.close()
        if not self._environment:
            raise StoppedError
        return self._report(started, time.monotonic() - began, why)

    def _stop(self) -> None:
        self._interrupted = True
        if self._task is not None:
            self._task.cancel()

    async def _checks(self) -> None:
        site, options = self._site, self._options
        self._progress.tell("identity: what is served")
        await site.look()
        site.dtype = options.dtype or site.dtype or (self._profile.precision if self._profile else None)
        launch = await running(site)
        await identify(site, launch, self._profile, options.oracles, self._book)
        if "needle" in options.sections:
            await check_lengths(site, options.lengths)
        self._environment = await environment(site, launch, self._profile, options.here)
        for name in options.sections:
            await self._section(name)

    def _section(self, name: Section) -> Coroutine[Any, Any, None]:
        site, options = self._site, self._options
        section: Runs
        match name:
            case "oracle":
                precision = options.dtype or (self._profile.precision if self._profile else None) or site.dtype
                section = OracleSection(site, options.oracles, options.tolerances, precision)
            case "needle":
                section = NeedleSection(
                    site, options.oracles, options.lengths, options.depths, options.needle_score, options.seed
                )
            case "mixed":
                section = MixedSection(site, rate=options.rate, seconds=options.mixed_s, seed=options.seed)
            case _:
                section = SoakSection(
                    site, seconds=options.soak_s, concurrency=options.concurrency, seed=options.seed + 1,
                    memory=options.memory,
                )  # fmt: skip
        return section.run(self._book, self._progress)

    def _report(self, started: str, seconds: float, why: str) -> Report:
        book, options = self._book, self._options
        for check in CHECKS:
            if check not in book and section_of(check) in options.sections:
                book.not_run(check, why, cut_off=True, detail=book.until_then.get(check, ""))
        checks = book.checks()
        verdict = verdict_of(checks, strict=options.strict)
        notes = list(book.notes)
        if left_out := [title for name, title in SECTIONS.items() if name not in ("identity", *options.sections)]:
            notes.append(f"Left out with --only: {', '.join(left_out)}.")
        if why:
            notes.append(f"The report is not complete: {why}.")
        return Report(
            verdict=verdict,
            summary=summary_of(checks),
            interrupted=self._interrupted,
            url=without_secrets(self._site.url),
            model=self._site.model,
            started=started,
            seconds=seconds,
            sections=list(options.sections),
            seed=options.seed,
            environment=self._environment,
            oracles=[_used(file) for file in options.oracles],
            checks=checks,
            needles=book.needles,
            soak=book.soak,
            notes=notes,
        )


def _used(file: OracleFile) -> OracleUsed:
    oracle = file.oracle
    engine = " ".join(filter(None, (oracle.recorder.engine, oracle.recorder.engine_version, oracle.recorder.device)))
    return OracleUsed(
        file=file.path.name,
        sha256=file.sha256,
        recorded=oracle.recorded,
        engine=engine,
        dtype=oracle.model.dtype,
        prompts=len(oracle.entries),
        needles=len(oracle.needles),
    )
