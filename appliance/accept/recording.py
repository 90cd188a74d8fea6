"""Makes an oracle of what a server answers now."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Final

from appliance import __version__
from appliance.accept.asking import Reply, Token
from appliance.accept.needle import Haystack, found, needle_body, usual_lengths
from appliance.accept.oracle_checks import greedy_body
from appliance.accept.oracle_file import Entry, Oracle, RecordedModel, RecordedNeedle, Recorder
from appliance.accept.progress import Progress
from appliance.accept.site import PROBE_TEXT, Site
from appliance.accept.texts import LONG, TEXTS
from appliance.bench.answers import RequestFailedError
from appliance.bench.prompts import random_words
from appliance.bench.server import ServerError

MOST_LONG_WORDS: Final = 1500
LONG_SHARE: Final = 0.5  # of the context
NEEDED: Final = ("tokenize", "id-prompts", "scores", "ids", "echo")
PREFIX: Final = "token_id:"


def usual_texts(site: Site) -> dict[str, str]:
    """Short ones, and one as long as is practical."""
    words = min(int(LONG_SHARE * site.max_model_len / site.tokens_a_word), MOST_LONG_WORDS)
    return {**TEXTS, LONG: next(random_words(words, 0)).capitalize()}


async def record(
    site: Site, progress: Progress, *, texts: Mapping[str, str], tokens: int, top: int, lengths: Sequence[int],
    depths: Sequence[float], seed: int, revision: str, digest: str, dtype: str, engine: tuple[str, str],
) -> Oracle:  # fmt: skip
    """Raises ServerError if the server cannot be asked what an oracle holds, or does not answer."""
    if not site.can(*NEEDED):
        raise ServerError(f"{site.url} cannot be recorded: {site.why_not(*NEEDED)}. Record an Ingot or a vLLM.")
    try:
        entries = []
        for done, (name, text) in enumerate(texts.items()):
            progress.tell(f"record: {name}", done, len(texts))
            entries.append(await _entry(site, name, text, tokens, top))
        needles = await _needles(site, progress, lengths, depths, seed) if depths else []
    except RequestFailedError as error:
        raise ServerError(f"{site.url} cannot be recorded: {error.kind}: {error}") from None
    except ValueError as error:
        raise ServerError(f"{site.url} cannot be recorded: {error}. Use --no-needles.") from None
    return Oracle(
        recorded=time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        recorder=Recorder(
            program=f"ingot accept record {__version__}",
            engine=engine[0],
            engine_version=engine[1],
            device=site.device or "",
        ),
        model=RecordedModel(
            name=site.model,
            digest=digest,
            dtype=dtype,
            revision=revision,
            tokenizer_text=PROBE_TEXT,
            tokenizer_ids=site.probes,
        ),
        top=top,
        entries=entries,
        needles=needles,
    )


async def _entry(site: Site, name: str, text: str, tokens: int, top: int) -> Entry:
    prompt = (await site.tokenize(text, special=True))[: max(site.max_model_len - tokens - 1, 1)]
    reply = await site.complete(greedy_body(site, prompt, tokens, top) | {"echo": True})
    said = reply.tokens[len(prompt) :]
    if len(reply.tokens) < len(prompt) or [_id(each) for each in reply.tokens[: len(prompt)]] != prompt:
        raise ServerError(f"{site.url} cannot be recorded: its echo of {name} is another prompt.")
    return Entry(
        id=name,
        prompt=prompt,
        tokens=[_id(token) for token in said],
        logprobs=[token.logprob for token in reply.tokens],
        top=[_top(token, top) for token in reply.tokens],
    )


def _top(token: Token, top: int) -> list[tuple[int, float]]:
    best = sorted(token.top.items(), key=lambda item: -item[1])[:top]
    return [(int(name.removeprefix(PREFIX)), logprob) for name, logprob in best]


def _id(token: Token) -> int:
    return int(token.name.removeprefix(PREFIX))


async def _needles(
    site: Site, progress: Progress, lengths: Sequence[int], depths: Sequence[float], seed: int
) -> list[RecordedNeedle]:
    haystack = Haystack(site, seed)
    recorded = []
    for length in lengths or usual_lengths(site.max_model_len):
        for depth in depths:
            progress.tell(f"record: needle of {length:,} tokens, depth {depth:.0%}")
            needle = await haystack.needle(length, depth)
            reply: Reply = await site.complete(needle_body(site, needle.prompt))
            recorded.append(
                RecordedNeedle(
                    id=needle.name,
                    depth=depth,
                    prompt=needle.prompt,
                    expected=needle.expected,
                    answer=reply.text,
                    found=found(reply.text, needle.expected),
                )
            )
    return recorded
