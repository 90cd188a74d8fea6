"""A fact in a long text, asked for at its end: by length up to the context, and by depth.

Whether a model finds it says how well the model reads; whether it gives the same answer with a warm cache and beside
other requests says whether it is served correctly. The two are different checks.
"""

from __future__ import annotations

import asyncio
import random
import secrets
import time
from collections.abc import Sequence
from typing import Any, Final, NamedTuple

from appliance.accept.asking import Reply
from appliance.accept.checks import checks_of
from appliance.accept.oracle_file import OracleFile
from appliance.accept.progress import Progress
from appliance.accept.report import Book, Cell, Failure
from appliance.accept.sameness import compare, excerpt
from appliance.accept.site import Site
from appliance.bench.answers import RequestFailedError
from appliance.bench.prompts import random_words
from appliance.bench.server import ServerError

ANSWER_TOKENS: Final = 16
DEPTHS: Final = (0.0, 0.5, 1.0)
SHARES: Final = (1 / 8, 1 / 4, 1 / 2, 1.0)  # of the context, unless lengths are given
LEAST_LENGTH: Final = 128
WORDS_A_SENTENCE: Final = 12
CITIES: Final = ("Bergen", "Cusco", "Daegu", "Lagos", "Malmö", "Nantes", "Osaka", "Perth", "Quito", "Riga", "Turin")
NEEDED: Final = ("tokenize", "id-prompts")


class Needle(NamedTuple):
    """`expected_found` is what an oracle's engine answered; None of a needle that no oracle holds."""

    name: str
    depth: float
    prompt: list[int]
    expected: str
    expected_found: bool | None = None


def found(answer: str, expected: str) -> bool:
    """Whether the answer begins with the fact, and not with a longer number."""
    said = answer.strip()
    return said.startswith(expected) and not said[len(expected) :][:1].isdigit()


def usual_lengths(context: int) -> list[int]:
    """Prompts of the shares of the context, the longest as long as it may be."""
    most = context - ANSWER_TOKENS
    return sorted({max(int(most * share), min(LEAST_LENGTH, most)) for share in SHARES})


class Haystack:
    """Makes prompts of an exact number of tokens: each part is tokenised alone, and the ids are put together."""

    def __init__(self, site: Site, seed: int) -> None:
        self._site = site
        self._rng = random.Random(seed)
        self._filler: list[int] = []

    async def needle(self, length: int, depth: float) -> Needle:
        """Raises ValueError if `length` has no room for the parts, RequestFailedError."""
        city, code = self._rng.choice(CITIES), str(self._rng.randrange(10_000, 100_000))
        # Each begins otherwise, so that the first time none is found in the prefix cache.
        head = await self._site.tokenize(f"Report {self._rng.randrange(10**9)}.\n", special=True)
        fact = await self._site.tokenize(f"\nThe access code of {city} is {code}.\n", special=False)
        question = await self._site.tokenize(f"\nThe access code of {city} is", special=False)
        room = length - len(head) - len(fact) - len(question)
        if room < 0:
            raise ValueError(f"a needle of {length:,} tokens is too short: use {length - room:,} or more")
        filler = await self._fill(room)
        before = round(depth * room)
        prompt = [*head, *filler[:before], *fact, *filler[before:], *question]
        return Needle(f"needle-{length}-{round(100 * depth)}", depth, prompt, code)

    async def _fill(self, tokens: int) -> list[int]:
        while len(self._filler) < tokens:
            words = random_words(WORDS_A_SENTENCE, self._rng.randrange(1 << 30))
            more = min(max((tokens - len(self._filler)) // WORDS_A_SENTENCE + 1, 8), 512)
            text = " ".join(f"{next(words).capitalize()}." for _ in range(more)) + " "
            self._filler += await self._site.tokenize(text, special=False)
        return self._filler[:tokens]


async def check_lengths(site: Site, lengths: Sequence[int]) -> None:
    """Before anything takes long. Raises ServerError for lengths that no needle of this server can have."""
    if not lengths or not site.can(*NEEDED):
        return
    most = site.max_model_len - ANSWER_TOKENS
    if site.tells_context and max(lengths) > most:
        raise ServerError(
            f"--needle-lengths: {max(lengths):,} tokens do not fit the context of {site.max_model_len:,}: use at most "
            f"{most:,}."
        )
    try:
        await Haystack(site, 0).needle(min(lengths), 0)
    except ValueError as error:
        raise ServerError(f"--needle-lengths: {error}.") from None


class NeedleSection:
    """`score` is the least share to be found where no oracle says which must be."""

    def __init__(
        self, site: Site, oracles: Sequence[OracleFile], lengths: Sequence[int], depths: Sequence[float],
        score: float | None, seed: int,
    ) -> None:  # fmt: skip
        self._site = site
        self._recorded = [
            Needle(needle.id, needle.depth, needle.prompt, needle.expected, needle.found)
            for file in oracles
            for needle in file.oracle.needles
            if len(needle.prompt) + ANSWER_TOKENS <= site.max_model_len
        ]
        self._lengths, self._depths, self._score, self._seed = lengths, depths, score, seed
        self._salt = self._new_salt()

    async def run(self, book: Book, progress: Progress) -> None:
        if not self._site.can(*NEEDED):
            for check in checks_of("needle"):
                book.not_run(check, self._site.why_not(*NEEDED))
            return
        try:
            needles = self._recorded or await self._make()
        except (ValueError, RequestFailedError) as error:
            for check in checks_of("needle"):
                book.not_run(check, f"no needle can be made: {error}")
            return
        alone = await self._alone(book, needles, progress)
        await self._again(book, alone, progress)
        await self._together(book, alone, progress)
        self._judge(book)

    async def _make(self) -> list[Needle]:
        haystack = Haystack(self._site, self._seed)
        lengths = self._lengths or usual_lengths(self._site.max_model_len)
        return [await haystack.needle(length, depth) for length in lengths for depth in self._depths]

    def _new_salt(self) -> dict[str, str]:
        return {"cache_salt": f"accept-{secrets.token_hex(8)}"} if self._site.can("salt") else {}

    def _body(self, needle: Needle) -> dict[str, Any]:
        """In a cache of this run: what an oracle asks may be in the server's from an earlier one."""
        return needle_body(self._site, needle.prompt) | self._salt

    async def _alone(self, book: Book, needles: list[Needle], progress: Progress) -> list[tuple[Needle, Reply]]:
        answered, failures = [], []
        for done, needle in enumerate(needles):
            progress.tell(f"needle: {len(needle.prompt):,} tokens, depth {needle.depth:.0%}", done, 3 * len(needles))
            began = time.perf_counter()
            try:
                reply = await self._site.complete(self._body(needle))
            except RequestFailedError as error:
                failures.append(Failure(prompt=needle.name, expected="an answer", got=f"{error.kind}: {error}"))
                continue
            if (wrong := _not_whole(needle, reply)) is not None:
                failures.append(wrong)
            answered.append((needle, reply))
            book.needles.append(_cell(needle, reply, time.perf_counter() - began))
        longest = max((len(needle.prompt) for needle in needles), default=0)
        detail = f"the longest has {longest:,} tokens"
        book.counted("needle.served", failures, of=len(needles), what="prompts", detail=detail)
        return answered

    async def _again(self, book: Book, alone: list[tuple[Needle, Reply]], progress: Progress) -> None:
        """What was read just now is in the prefix cache, where there is one."""
        failures: list[Failure] = []
        tied = cached = 0
        for done, (needle, before) in enumerate(alone):
            progress.tell(f"needle: again, {len(needle.prompt):,} tokens", len(alone) + done, 3 * len(alone))
            reply = await self._ask(needle, self._body(needle), failures)
            if reply is not None:
                cached += reply.cached_tokens > 0
                tied += self._compare(needle, before, reply, failures)
        detail = f"{cached:,} found in the cache" + _ties(tied)
        book.counted("needle.warm", failures, of=len(alone), what="answers", detail=detail)

    async def _together(self, book: Book, alone: list[tuple[Needle, Reply]], progress: Progress) -> None:
        """All at once, and not from the cache where the server can be asked so."""
        progress.tell(f"needle: all {len(alone)} at once", 2, 3)
        failures: list[Failure] = []
        cold = self._new_salt()
        asked = [self._ask(needle, self._body(needle) | cold, failures) for needle, _ in alone]
        replies = await asyncio.gather(*asked)
        tied = 0
        for (needle, before), reply in zip(alone, replies, strict=True):
            if reply is not None:
                tied += self._compare(needle, before, reply, failures)
        book.counted("needle.batch", failures, of=len(alone), what="answers", detail=_ties(tied).lstrip("; "))

    async def _ask(self, needle: Needle, body: dict[str, Any], failures: list[Failure]) -> Reply | None:
        try:
            return await self._site.complete(body)
        except RequestFailedError as error:
            failures.append(Failure(prompt=needle.name, expected="an answer", got=f"{error.kind}: {error}"))
            return None

    def _compare(self, needle: Needle, before: Reply, reply: Reply, failures: list[Failure]) -> bool:
        """Takes a difference down; whether the answers part at a tie."""
        same = compare(before, reply, self._site.tolerance)
        if (wrong := same.difference) is not None:
            failures.append(
                Failure(prompt=needle.name, position=wrong.position, expected=wrong.expected, got=wrong.got)
            )
        return same.tied

    def _judge(self, book: Book) -> None:
        """By the oracle's own answers where it has some, else by the score that was asked for."""
        cells = book.needles
        if not cells:
            book.not_run("needle.found", "no needle was answered")
            return
        shown = sum(cell.found for cell in cells)
        missed = [cell for cell in cells if not cell.found and cell.expected_found is not False]
        failures = [
            Failure(
                prompt=f"{cell.length:,} tokens, depth {cell.depth:.0%}",
                expected="the fact, as the oracle's engine" if cell.expected_found else "the fact",
                got=cell.answer,
            )
            for cell in missed
        ]
        if wanted := sum(bool(cell.expected_found) for cell in cells):
            both = sum(cell.found and bool(cell.expected_found) for cell in cells)
            detail = f"{both:,} of the {wanted:,} that the oracle's engine found"
            book.measured("needle.found", both / wanted, 1.0, detail=detail, failures=failures)
        elif self._score is not None:
            detail = f"{shown:,} of {len(cells):,}"
            book.measured("needle.found", shown / len(cells), self._score, detail=detail, failures=failures)
        else:
            known = self._recorded and "the oracle's engine found none either"
            reason = (
                known or "nothing says how many this model must find: give --needle-score, or an oracle with needles"
            )
            book.not_run("needle.found", reason, detail=f"{shown:,} of {len(cells):,} found")


def needle_body(site: Site, prompt: list[int]) -> dict[str, Any]:
    return {"prompt": prompt, "max_tokens": ANSWER_TOKENS, "temperature": 0, **site.scored}


def _not_whole(needle: Needle, reply: Reply) -> Failure | None:
    """The server must have read all of the prompt, and have begun an answer."""
    if reply.prompt_tokens not in (None, len(needle.prompt)):
        wanted, got = f"{len(needle.prompt):,} prompt tokens", f"{reply.prompt_tokens:,}"
        return Failure(prompt=needle.name, expected=wanted, got=got)
    problems = reply.problems or ([] if reply.output_tokens != 0 else ["it has no tokens"])
    return Failure(prompt=needle.name, expected="a whole answer", got="; ".join(problems)) if problems else None


def _cell(needle: Needle, reply: Reply, seconds: float) -> Cell:
    return Cell(
        length=len(needle.prompt),
        depth=needle.depth,
        found=found(reply.text, needle.expected),
        expected_found=needle.expected_found,
        answer=excerpt(reply.text),
        seconds=seconds,
    )


def _ties(count: int) -> str:
    return f"; {count:,} part where two tokens are equally likely" if count else ""
