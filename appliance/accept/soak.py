"""Load for a while: nothing may fail, get stuck, slow down, grow, or begin anew; and what was answered at first must be
answered the same at the end."""

from __future__ import annotations

import asyncio
import random
import statistics
import time
from collections.abc import Callable, Iterator
from typing import Final, NamedTuple

from appliance.accept.asking import Reply
from appliance.accept.checks import checks_of
from appliance.accept.mixed import Outcomes, settled
from appliance.accept.progress import Progress
from appliance.accept.report import Book, Failure, Moment
from appliance.accept.sameness import compare
from appliance.accept.site import Site
from appliance.accept.workload import Request, made, possible
from appliance.bench.answers import RequestFailedError
from appliance.bench.load import Generator, Load
from appliance.bench.measurement import Measurement

LOOK_S: Final = 2.0
REPLAYED: Final = 12
DRIFT: Final = 1.5  # of the time per token, last third over first
LEAST_ANSWERS: Final = 20  # in a third, for its median to say something
GROWTH: Final = 0.1
LEAST_LOOKS: Final = 6
MOMENTS: Final = 120  # of the report's plot
READY: Final = "ready"

Memory = Callable[[], int | None]
"""Bytes that the engine's processes hold; None where that cannot be seen."""


class Look(NamedTuple):
    """At the site, while it is under load. None is what it does not tell."""

    at: float
    launch: str | None
    state: str | None
    memory: float | None


class Soaked(Outcomes):
    """Keeps some of the answers, each as likely as any other, and when each ended."""

    def __init__(self, site: Site, rng: random.Random) -> None:
        super().__init__(site)
        self.kept: list[tuple[Request, Reply]] = []
        self.ends: list[tuple[float, float]] = []  # when, and seconds per token
        self._rng = rng
        self._greedy = 0

    def answered(self, request: Request, reply: Reply) -> None:
        tokens = reply.output_tokens or len(reply.tokens) or len(reply.events)
        if request.kind in ("short", "stream") and tokens:
            self.ends.append((time.perf_counter(), reply.seconds / tokens))
        if request.kind not in ("short", "stream", "long"):
            return
        self._greedy += 1
        if len(self.kept) < REPLAYED:
            self.kept.append((request, reply))
        elif (place := self._rng.randrange(self._greedy)) < REPLAYED:
            self.kept[place] = (request, reply)


class SoakSection:
    """`concurrency` requests are in flight for `seconds`."""

    def __init__(self, site: Site, *, seconds: float, concurrency: int, seed: int, memory: Memory) -> None:
        self._site = site
        self._seconds, self._concurrency = seconds, concurrency
        self._rng = random.Random(seed)
        self._memory = memory
        self._looks: list[Look] = []

    async def run(self, book: Book, progress: Progress) -> None:
        if not self._seconds:
            for check in checks_of("soak"):
                book.not_run(check, "--soak 0 leaves it out")
            return
        site, outcomes = self._site, Soaked(self._site, self._rng)
        before = await site.in_engine()
        began = time.perf_counter()
        try:
            await self._load(outcomes, progress, began)
        except asyncio.CancelledError:
            outcomes.book_failures(book, "soak")
            self._plot(book, outcomes, began)
            raise
        self._plot(book, outcomes, began)
        self._form(book, outcomes)
        await self._stuck(book, outcomes, before)
        self._drift(book, outcomes, began)
        self._memory_growth(book)
        self._restarts(book)
        await self._replay(book, outcomes, progress)

    def _requests(self) -> Iterator[Request]:
        kinds = possible(self._site)
        number = 0
        while True:
            number += 1
            kind = self._rng.choices(kinds, [kind.share for kind in kinds])[0]
            yield made(kind, self._site, self._rng, number)

    async def _load(self, outcomes: Soaked, progress: Progress, began: float) -> None:
        measurement = Measurement(0)
        load = Load(self._concurrency, seconds=self._seconds)
        generator = Generator(load, outcomes.ask, self._requests(), measurement)

        async def look() -> None:
            while True:
                self._looks.append(await self._look())
                passed = time.perf_counter() - began
                progress.tell(f"soak: {measurement.completed:,} answered", passed, self._seconds)
                await asyncio.sleep(LOOK_S)

        looking = asyncio.create_task(look())
        try:
            await generator.run()
            self._looks.append(await self._look())
        finally:
            generator.stop()
            looking.cancel()

    async def _look(self) -> Look:
        state = await self._site.state() or {}
        launch = state.get("launch") or {}
        memory: float | None = self._memory()
        if memory is None:
            memory = (await self._site.metrics()).get("process_resident_memory_bytes")
        return Look(time.perf_counter(), launch.get("id"), state.get("state"), memory)

    # ----------------------------------------------------------------------------------------------------------------
    # What came of it
    # ----------------------------------------------------------------------------------------------------------------

    def _form(self, book: Book, outcomes: Soaked) -> None:
        detail = f"{self._concurrency:,} at a time for {self._seconds:g} s; left early by the client: {outcomes.left:,}"
        failed = outcomes.failures.get("answered", [])
        book.counted("soak.errors", failed, of=outcomes.sent, what="requests", detail=detail)
        wrong = [each for check, failures in outcomes.failures.items() if check != "answered" for each in failures]
        book.counted("soak.form", wrong, of=outcomes.judged.get("form", 0), what="answers")

    async def _stuck(self, book: Book, outcomes: Soaked, before: float | None) -> None:
        late = [each for each in outcomes.failures.get("answered", []) if each.got.startswith("timeout")]
        left = 0.0 if before is None else await settled(self._site, before)
        detail = f"no answer may take more than {self._site.timeout_s:g} s"
        if before is None:
            detail += "; what is left in the engine its /metrics do not tell"
        book.measured("soak.stuck", len(late) + left, 0, detail=detail, failures=late)

    def _drift(self, book: Book, outcomes: Soaked, began: float) -> None:
        third = self._seconds / 3
        first = [each for at, each in outcomes.ends if at - began < third]
        last = [each for at, each in outcomes.ends if at - began >= 2 * third]
        if min(len(first), len(last)) < LEAST_ANSWERS:
            reason = (
                f"{len(first):,} and {len(last):,} answers in the first and last third are too few to compare: make "
                "the soak longer with --soak"
            )
            book.not_run("soak.drift", reason)
            return
        early, late = statistics.median(first), statistics.median(last)
        detail = f"median {1e3 * early:.1f} ms, then {1e3 * late:.1f} ms"
        book.measured("soak.drift", late / early, DRIFT, detail=detail)

    def _memory_growth(self, book: Book) -> None:
        """From the end of the first third on: until then caches fill."""
        seen = [look.memory for look in self._looks if look.memory]
        if not seen:
            reason = "the engine's memory cannot be seen: it runs elsewhere, and its /metrics do not tell it"
            book.not_run("soak.memory", reason)
            return
        if len(seen) < LEAST_LOOKS:
            book.not_run("soak.memory", f"{len(seen)} looks are too few: make the soak longer with --soak")
            return
        warm, end = seen[len(seen) // 3], seen[-1]
        detail = f"{warm / (1 << 20):,.0f} MiB, then {end / (1 << 20):,.0f} MiB, of the engine's processes"
        book.measured("soak.memory", max(end / warm - 1, 0.0), GROWTH, detail=detail)

    def _restarts(self, book: Book) -> None:
        looks = self._looks
        if not any(look.state for look in looks):
            book.not_run("soak.restarts", "the server has no /appliance/state, or this key may not see it")
            return
        failures = []
        launch = looks[0].launch
        for look in looks:
            when = f"{look.at - looks[0].at:.0f} s"
            if look.state != READY:
                failures.append(Failure(prompt=when, expected=READY, got=look.state or "no answer"))
            elif look.launch != launch:
                failures.append(Failure(prompt=when, expected=f"launch {launch}", got=f"launch {look.launch}"))
                launch = look.launch
        book.counted("soak.restarts", failures, of=len(looks), what="looks at its state")

    async def _replay(self, book: Book, outcomes: Soaked, progress: Progress) -> None:
        if (why := self._site.why_not_comparable) is not None:
            book.not_run("soak.replay", why)
            return
        failures, tied = [], 0
        for done, (request, before) in enumerate(outcomes.kept):
            progress.tell(f"soak: {request.name} again", done, len(outcomes.kept))
            try:
                reply = await self._site.ask(request.path, request.body)
            except RequestFailedError as error:
                failures.append(Failure(prompt=request.name, expected="an answer", got=f"{error.kind}: {error}"))
                continue
            same = compare(before, reply, self._site.tolerance)
            tied += same.tied
            if (wrong := same.difference) is not None:
                failures.append(
                    Failure(prompt=request.name, position=wrong.position, expected=wrong.expected, got=wrong.got)
                )
        ties = f"{tied:,} part where two tokens are equally likely" if tied else ""
        book.counted("soak.replay", failures, of=len(outcomes.kept), what="sampled requests", detail=ties)

    def _plot(self, book: Book, outcomes: Soaked, began: float) -> None:
        step = max(self._seconds / MOMENTS, 1.0)
        bins: dict[int, list[float]] = {}
        for at, seconds in outcomes.ends:
            bins.setdefault(int((at - began) / step), []).append(seconds)
        book.soak = [
            Moment(at_s=place * step, answers=len(values), seconds_per_token=sum(values) / len(values))
            for place, values in sorted(bins.items())
        ]
