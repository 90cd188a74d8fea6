"""Requests of every kind, short and long, at random moments: each answer must be whole, and no other than alone."""

from __future__ import annotations

import asyncio
import itertools
import random
import time
from collections.abc import Iterator
from typing import Final

import msgspec

from appliance.accept.asking import Reply
from appliance.accept.checks import CHECKS
from appliance.accept.progress import Progress
from appliance.accept.report import Book, Failure
from appliance.accept.sameness import compare
from appliance.accept.site import Site
from appliance.accept.workload import Kind, Request, find_forms, form_problem, made, possible, stopped
from appliance.bench.answers import Answer, RequestFailedError
from appliance.bench.load import Generator, Load
from appliance.bench.measurement import Measurement

VARIANTS: Final = 4  # requests of each greedy kind, asked alone beforehand and several times among others
MOST_IN_FLIGHT: Final = 256
SETTLE_S: Final = 15.0  # the engine's figures are a second old
SETTLE_STEP_S: Final = 0.5
# What a section calls the outcomes that are common to all.
_NAMES: Final[dict[str, dict[str, str]]] = {"mixed": {}, "soak": {"answered": "errors"}}


def _named(check: str, section: str) -> str:
    return check if "." in check else f"{section}.{_NAMES[section].get(check, check)}"


class Outcomes:
    """What came of the requests; of each check, how many answers it judged and which failed."""

    def __init__(self, site: Site) -> None:
        self._site = site
        self.sent = 0
        self.left = 0
        self.tied = 0
        self.judged: dict[str, int] = {}
        self.failures: dict[str, list[Failure]] = {}

    async def ask(self, request: Request) -> Answer:
        """Sends it, and judges what comes. Raises RequestFailedError."""
        self.sent += 1
        try:
            if request.leave_after is not None:
                reply = await self._site.leave(request.path, request.body, request.leave_after)
                self.left += 1
                return Answer(reply.sent, [reply.sent + reply.seconds], len(reply.events))
            reply = await self._site.ask(request.path, request.body)
        except RequestFailedError as error:
            self._fail("answered", request, "an answer", f"{error.kind}: {error}")
            raise
        problem = form_problem(request, reply)
        self._count("form")
        if problem is not None:
            self._fail("form", request, "a well-formed answer", problem)
        if request.alone is not None:
            self._count("same")
            same = compare(request.alone, reply, self._site.tolerance)
            self.tied += same.tied
            if (wrong := same.difference) is not None:
                self._fail("same", request, wrong.expected, wrong.got, wrong.position)
        if request.verify is not None:
            self._count(request.check)
            if (problem := request.verify(reply)) is not None:
                self._fail(request.check, request, "what was asked for", problem)
        self.answered(request, reply)
        ends = [reply.sent + event for event in reply.events] or [reply.sent + reply.seconds]
        return Answer(reply.sent, ends, reply.output_tokens or len(reply.events), reply.prompt_tokens or 0)

    def answered(self, request: Request, reply: Reply) -> None:
        """Called with each whole answer."""

    def book_failures(self, book: Book, section: str) -> None:
        """Of a section that is cut off: what is wrong already stays wrong, and how much was right is told."""
        for check, failures in self.failures.items():
            of = self.sent if check == "answered" else self.judged[check]
            name = _named(check, section)
            if name in CHECKS:
                book.counted(name, failures, of=of, what="until it was cut off")
        for check, of in {"answered": self.sent, **self.judged}.items():
            name = _named(check, section)
            book.until_then[name] = f"until then: {of:,}, none of them wrong"

    def _count(self, check: str) -> None:
        self.judged[check] = self.judged.get(check, 0) + 1

    def _fail(self, check: str, request: Request, expected: str, got: str, position: int | None = None) -> None:
        failure = Failure(prompt=request.name, position=position, expected=expected, got=got)
        self.failures.setdefault(check, []).append(failure)


class MixedSection:
    """`rate` requests a second arrive for `seconds`, at random moments."""

    def __init__(self, site: Site, *, rate: float, seconds: float, seed: int) -> None:
        self._site = site
        self._rate, self._seconds, self._seed = rate, seconds, seed
        self._rng = random.Random(seed)

    async def run(self, book: Book, progress: Progress) -> None:
        site = self._site
        progress.tell("mixed: asking each request alone")
        await find_forms(site)
        before = await site.in_engine()
        requests, refused = await self._alone(progress)
        outcomes = Outcomes(site)
        try:
            await self._arrive(requests, outcomes, progress)
        except asyncio.CancelledError:
            outcomes.book_failures(book, "mixed")
            raise
        self._book(book, outcomes, refused)
        await self._settle(book, outcomes, before)

    async def _alone(self, progress: Progress) -> tuple[dict[Kind, list[Request]], list[Failure]]:
        """The variants of each greedy kind with their answers, and stop strings taken from those; failures count with
        the arrivals'."""
        requests: dict[Kind, list[Request]] = {}
        failures: list[Failure] = []
        for kind in possible(self._site):
            if kind.greedy == "no":
                continue
            variants = [made(kind, self._site, self._rng, number) for number in range(VARIANTS)]
            for request in variants:
                progress.tell(f"mixed: {request.name} alone", len(requests), len(possible(self._site)))
                try:
                    reply = await self._site.ask(request.path, request.body)
                except RequestFailedError as error:
                    got = f"{error.kind}: {error}"
                    failures.append(Failure(prompt=f"{request.name} alone", expected="an answer", got=got))
                    continue
                if self._site.is_exact or (kind.greedy == "scored" and self._site.why_not_comparable is None):
                    request.alone = reply
            requests[kind] = variants
        return requests, failures

    def _mixture(self, variants: dict[Kind, list[Request]]) -> Iterator[Request]:
        """Without end: first one of each kind, and each with a stop string; then as the kinds' shares say. Greedy ones
        come from the variants, half of them not from the prefix cache; of the others each is new."""
        kinds = possible(self._site)
        streamed = next((requests for kind, requests in variants.items() if kind.name == "stream"), [])
        stops = [
            stop
            for number, request in enumerate(streamed)
            if (stop := stopped(self._site, request, number, self._rng)) is not None
        ]
        first: list[Kind | Request] = [*kinds, *stops]
        self._rng.shuffle(first)
        for number in itertools.count(1):
            drawn = first.pop() if first else self._rng.choices(kinds, [kind.share for kind in kinds])[0]
            if isinstance(drawn, Kind):
                if drawn not in variants:
                    yield made(drawn, self._site, self._rng, number)
                    continue
                drawn = self._rng.choice(variants[drawn] + (stops if drawn.name == "stream" else []))
            if self._site.can("salt") and self._rng.random() < 0.5:
                salt = {"cache_salt": f"accept-{self._rng.randrange(1 << 60):x}"}
                drawn = msgspec.structs.replace(drawn, body=drawn.body | salt)
            yield drawn

    async def _arrive(self, variants: dict[Kind, list[Request]], outcomes: Outcomes, progress: Progress) -> None:
        load = Load(MOST_IN_FLIGHT, seconds=self._seconds, rate=self._rate, seed=self._seed)
        measurement = Measurement(0)
        generator = Generator(load, outcomes.ask, self._mixture(variants), measurement)
        began = time.perf_counter()

        async def tell() -> None:
            while True:
                what = f"mixed: {measurement.completed:,} answered, {measurement.in_flight:,} in flight"
                progress.tell(what, time.perf_counter() - began, self._seconds)
                await asyncio.sleep(SETTLE_STEP_S)

        telling = asyncio.create_task(tell())
        try:
            await generator.run()
        finally:
            generator.stop()
            telling.cancel()

    def _book(self, book: Book, outcomes: Outcomes, refused: list[Failure]) -> None:
        site, judged = self._site, outcomes.judged

        def failures(check: str) -> list[Failure]:
            return outcomes.failures.get(check, [])

        detail = f"{self._rate:g} a second; left early by the client: {outcomes.left:,}"
        answered = [*refused, *failures("answered")]
        book.counted("mixed.answered", answered, of=outcomes.sent, what="requests", detail=detail)
        book.counted("mixed.form", failures("form"), of=judged.get("form", 0), what="answers")
        if (why := site.why_not_comparable) is not None:
            book.not_run("mixed.same", why)
        else:
            ties = f"{outcomes.tied:,} part where two tokens are equally likely" if outcomes.tied else ""
            book.counted("mixed.same", failures("same"), of=judged.get("same", 0), what="greedy answers", detail=ties)
        for check, ability, what in (
            ("mixed.stops", None, "answers with a stop string"),
            ("mixed.structured", "structured", "answers with a schema"),
            ("mixed.tools", "tools", "demanded calls"),
        ):
            if ability is not None and not site.can(ability):
                book.not_run(check, site.why_not(ability))
            else:
                book.counted(check, failures(check), of=judged.get(check, 0), what=what)

    async def _settle(self, book: Book, outcomes: Outcomes, before: float | None) -> None:
        """Nothing may be left of what was answered or left."""
        if before is None:
            book.not_run("mixed.aborts", "the server's /metrics do not tell how many requests are in the engine")
            return
        left = await settled(self._site, before)
        detail = f"within {SETTLE_S:g} s; left early by the client: {outcomes.left:,}"
        book.measured("mixed.aborts", left, 0, detail=detail)


async def settled(site: Site, before: float) -> float:
    """How many more requests than `before` the engine still has, after a while."""
    deadline = time.monotonic() + SETTLE_S
    while True:
        now = await site.in_engine()
        left = max((now or 0.0) - before, 0.0)
        if not left or time.monotonic() > deadline:
            return left
        await asyncio.sleep(SETTLE_STEP_S)
