"""A server's logprobs against those of an oracle, position by position."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

from appliance.accept.asking import Reply, Token
from appliance.accept.checks import checks_of
from appliance.accept.oracle_file import Entry, Oracle, OracleFile, Top
from appliance.accept.progress import Progress
from appliance.accept.report import Book, Failure
from appliance.accept.sameness import compare_tokens, nats
from appliance.accept.site import OPTIONAL, Site
from appliance.accept.tolerances import Tolerances, coarser, tolerances_for
from appliance.bench.answers import RequestFailedError

NAMED: Final = 8  # failures of a check that are named
NEEDED: Final = ("id-prompts", "scores", "ids")


class Place(NamedTuple):
    """One position of one entry: how far the logprobs are apart, the divergence of the likeliest tokens, and whether
    the likeliest is the same. Infinite where the server told none."""

    entry: str
    position: int
    expected: Token
    got: Token
    apart: float
    divergence: float

    @property
    def same_top(self) -> bool:
        """In half precision several tokens may be the likeliest."""
        return not likeliest(self.expected).isdisjoint(likeliest(self.got))


class OracleSection:
    """The prompts of each oracle with what followed them, read by the server as one prompt; and generated anew."""

    def __init__(
        self, site: Site, oracles: Sequence[OracleFile], given: Mapping[str, float], precision: str | None
    ) -> None:
        self._site = site
        every = [(file.oracle, entry) for file in oracles for entry in file.oracle.entries]
        self._entries = [row for row in every if len(row[1].prompt) + len(row[1].tokens) < site.max_model_len]
        self._too_long = len(every) - len(self._entries)
        self._given = given
        self._dtype = coarser(precision, *(file.oracle.model.dtype for file in oracles))

    async def run(self, book: Book, progress: Progress) -> None:
        if self._too_long:
            book.notes.append(
                f"{self._too_long:,} prompts of the oracle are longer than the context, and were left out."
            )
        if not self._entries:
            given = "no oracle was given: record one on a trusted engine, and name it with --oracle"
            for check in checks_of("oracle"):
                book.not_run(check, "every prompt of the oracle is too long" if self._too_long else given)
            return
        if not self._site.can(*NEEDED):
            for check in checks_of("oracle"):
                book.not_run(check, self._site.why_not(*NEEDED))
            return
        bounds = tolerances_for(self._dtype, self._given)
        await self._decode(book, progress, bounds)
        if self._site.can("echo"):
            await self._echo(book, progress, bounds)
            return
        for check in ("oracle.max", "oracle.mean", "oracle.kl", "oracle.top1"):
            book.not_run(check, self._site.why_not("echo"))

    # ----------------------------------------------------------------------------------------------------------------
    # What the server says of the prompts
    # ----------------------------------------------------------------------------------------------------------------

    async def _echo(self, book: Book, progress: Progress, bounds: Tolerances) -> None:
        places: list[Place] = []
        failed: list[Failure] = []
        for done, (oracle, entry) in enumerate(self._entries):
            progress.tell(f"oracle: reading {entry.id}", done, len(self._entries))
            ids = [*entry.prompt, *entry.tokens]
            body = {"prompt": ids, "max_tokens": 1, "echo": True, "logprobs": oracle.top, "temperature": 0}
            try:
                reply = await self._site.complete(body | OPTIONAL["ids"])
            except RequestFailedError as error:
                failed.append(Failure(prompt=entry.id, expected="an answer", got=f"{error.kind}: {error}"))
                continue
            if (wrong := _other_echo(entry.id, ids, reply)) is not None:
                failed.append(wrong)
                continue
            places += _places(entry, reply)
        self._judge(book, places, failed, bounds)

    def _judge(self, book: Book, places: list[Place], failed: list[Failure], bounds: Tolerances) -> None:
        """Whoever did not answer is infinitely far away."""
        unanswered = math.inf if failed else 0.0
        count = max(len(places), 1)
        detail = f"{len(places):,} positions of {len(self._entries):,} prompts, bounds of {self._dtype}"

        def worst(key: Any, bound: float) -> list[Failure]:
            beyond = sorted((place for place in places if key(place) > bound), key=key, reverse=True)
            return [*failed, *(_failure(place) for place in beyond[:NAMED])]

        largest = max((place.apart for place in places), default=0.0)
        mean = sum(place.apart for place in places) / count
        divergence = sum(place.divergence for place in places) / count
        agreeing = sum(place.same_top for place in places) / count
        others = [_failure(place) for place in places if not place.same_top]
        other_top = [*failed, *others[:NAMED]]
        book.measured("oracle.max", largest + unanswered, bounds.max, detail=detail, failures=worst(_apart, bounds.max))
        book.measured(
            "oracle.mean", mean + unanswered, bounds.mean,
            failures=worst(_apart, bounds.mean) if not mean + unanswered <= bounds.mean else [],
        )  # fmt: skip
        book.measured(
            "oracle.kl", divergence + unanswered, bounds.kl,
            failures=worst(_divergence, bounds.kl) if not divergence + unanswered <= bounds.kl else [],
        )  # fmt: skip
        book.measured(
            "oracle.top1", 0.0 if failed else agreeing, bounds.top1,
            failures=other_top if failed or agreeing < bounds.top1 else [],
        )  # fmt: skip

    # ----------------------------------------------------------------------------------------------------------------
    # What it generates
    # ----------------------------------------------------------------------------------------------------------------

    async def _decode(self, book: Book, progress: Progress, bounds: Tolerances) -> None:
        failures, tied, asked = [], 0, 0
        for done, (oracle, entry) in enumerate(self._entries):
            if not entry.tokens:
                continue
            asked += 1
            progress.tell(f"oracle: answering {entry.id}", done, len(self._entries))
            try:
                reply = await self._site.complete(greedy_body(self._site, entry.prompt, len(entry.tokens), oracle.top))
            except RequestFailedError as error:
                failures.append(Failure(prompt=entry.id, expected="an answer", got=f"{error.kind}: {error}"))
                continue
            same = compare_tokens(_recorded(entry)[len(entry.prompt) :], reply.tokens, bounds.max)
            tied += same.tied
            if (wrong := same.difference) is not None:
                place = len(entry.prompt) + wrong.position
                failures.append(Failure(prompt=entry.id, position=place, expected=wrong.expected, got=wrong.got))
        ties = f"{tied:,} part from it where two tokens are equally likely" if tied else ""
        book.counted("oracle.decode", failures, of=asked, what="greedy answers", detail=ties)


def greedy_body(site: Site, prompt: list[int], tokens: int, top: int) -> dict[str, Any]:
    """As an oracle's continuations are recorded."""
    asked = {"prompt": prompt, "max_tokens": tokens, "temperature": 0, "logprobs": top}
    return asked | site.fields("ids", "length")


async def misfit(oracle: Oracle, site: Site) -> str | None:
    """Why the oracle is not one of the model that is served; None if it is, as far as can be told."""
    model = oracle.model
    if model.digest and site.digest and model.digest != site.digest:
        return f"it was recorded of {model.name} ({model.digest}), and {site.model} ({site.digest}) is served"
    if site.can("tokenize") and model.tokenizer_ids:
        got = await site.tokenize(model.tokenizer_text, special=False)
        if got != model.tokenizer_ids:
            return (
                f"its tokenizer made {len(model.tokenizer_ids)} tokens of a text that {site.model} makes {len(got)} of"
            )
    return None


def is_identified(oracle: Oracle, site: Site) -> bool:
    """Whether `misfit` could tell another model."""
    return bool(oracle.model.digest and site.digest)


def _recorded(entry: Entry) -> list[Token]:
    ids = [*entry.prompt, *entry.tokens]
    return [
        Token(f"token_id:{token}", logprob, _named(top))
        for token, logprob, top in zip(ids, entry.logprobs, entry.top, strict=True)
    ]


def _named(top: Top) -> dict[str, float]:
    return {f"token_id:{token}": logprob for token, logprob in top}


def _other_echo(entry: str, ids: list[int], reply: Reply) -> Failure | None:
    """The echo must be of the prompt that was sent."""
    names = [token.name for token in reply.tokens[: len(ids)]]
    wanted = [f"token_id:{token}" for token in ids]
    if names == wanted:
        return None
    at = next((at for at, (one, other) in enumerate(zip(wanted, names, strict=False)) if one != other), len(names))
    got = names[at] if at < len(names) else "nothing"
    return Failure(prompt=entry, position=at, expected=wanted[at], got=got)


def _places(entry: Entry, reply: Reply) -> list[Place]:
    """From the second token on: nothing comes before the first."""
    places = []
    for position, (expected, got) in enumerate(zip(_recorded(entry), reply.tokens, strict=False)):
        if position:
            apart = _distance(expected.logprob, got.logprob)
            places.append(Place(entry.id, position, expected, got, apart, kl_divergence(expected.top, got.top)))
    return places


def _distance(expected: float | None, got: float | None) -> float:
    if expected is None or got is None or not math.isfinite(got):
        return math.inf
    return abs(expected - got)


def kl_divergence(expected: Mapping[str, float], got: Mapping[str, float]) -> float:
    """Kullback and Leibler's, in nats, of the two distributions over the tokens that both name, each made to sum to 1;
    infinite where they share none."""
    shared = [name for name in expected if name in got]
    if not shared:
        return math.inf if expected else 0.0
    p, q = (_normalised([logprobs[name] for name in shared]) for logprobs in (expected, got))
    return max(sum(math.exp(a) * (a - b) for a, b in zip(p, q, strict=True)), 0.0)


def _normalised(logprobs: list[float]) -> list[float]:
    most = max(logprobs)
    total = most + math.log(sum(math.exp(each - most) for each in logprobs))
    return [each - total for each in logprobs]


def likeliest(token: Token) -> set[str]:
    most = max(token.top.values(), default=0.0)
    return {name for name, logprob in token.top.items() if logprob == most}


def _apart(place: Place) -> float:
    return place.apart


def _divergence(place: Place) -> float:
    return place.divergence


def _failure(place: Place) -> Failure:
    return Failure(prompt=place.entry, position=place.position, expected=_shown(place.expected), got=_shown(place.got))


def _shown(token: Token) -> str:
    logprob = nats(token.logprob)
    name = token.name.removeprefix("token_id:")
    if token.name in (best := likeliest(token)):
        return f"token {name}: {logprob}"
    return f"token {name}: {logprob}, likeliest {min(best, default='none').removeprefix('token_id:')}"
