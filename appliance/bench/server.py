"""What must be known of a server before it is put under load: its model, the fields that it takes, and how many words
make a prompt of so many tokens."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Final, NamedTuple

import msgspec

from appliance.bench.answers import Answer, RequestFailedError, ask, refused
from appliance.bench.connection import ConnectionBrokenError, ConnectionFailedError, Pool
from appliance.bench.prompts import Prompt, random_words

PATHS: Final = {"chat": "/chat/completions", "completions": "/completions"}
MOST_MODELS_BYTES: Final = 1 << 22
MODELS_TIMEOUT_S: Final = 30.0
PROBE_TIMEOUT_S: Final = 120.0
FEW_WORDS: Final = 4
MANY_WORDS: Final = 256
# Not every server takes these. They are left out where it refuses them, in this order if it does not say which.
OPTIONAL: Final[dict[str, Any]] = {
    "ignore_eos": True,
    "stream_options": {"include_usage": True},
    "temperature": 0,
}
REFUSED_FIELDS: Final = (400, 422)


class ServerError(Exception):
    """The server cannot be measured. The text says why, and what to do."""


class Form(NamedTuple):
    """How this server wants to be asked. `optional` are those fields of OPTIONAL that it takes; `limit` is what it
    calls the most tokens of an answer."""

    api: str
    model: str
    optional: frozenset[str] = frozenset(OPTIONAL)
    limit: str = "max_tokens"

    def body(self, prompt: Prompt, output_tokens: int) -> bytes:
        if self.api == "completions":
            asked: dict[str, Any] = {"prompt": prompt}
        else:
            asked = {"messages": [{"role": "user", "content": prompt}] if isinstance(prompt, str) else prompt}
        optional = {name: value for name, value in OPTIONAL.items() if name in self.optional}
        fields = {"model": self.model, **asked, self.limit: output_tokens, "stream": True, **optional}
        return msgspec.json.encode(fields)

    def after(self, refusal: RequestFailedError) -> Form | None:
        """What to try next; None if nothing can be left out any more."""
        said = str(refusal)
        if self.limit == "max_tokens" and "max_completion_tokens" in said:
            return self._replace(limit="max_completion_tokens")
        left = [name for name in OPTIONAL if name in self.optional]
        named = [name for name in left if name in said]
        return self._replace(optional=self.optional.difference((named or left)[:1])) if left else None


class Served(NamedTuple):
    """`about` is all that the server's list says of the model."""

    model: str
    max_model_len: int | None = None
    about: Mapping[str, Any] = MappingProxyType({})


async def find_model(pool: Pool, wanted: str | None) -> Served:
    """The model that is served, or `wanted` among those that are, or where the server has no list. Raises
    ServerError."""
    url = pool.target.url
    status, raw, headers = await get(pool, "/models")
    if status == 404 and wanted is not None:
        return Served(wanted)
    if status != 200:
        raise not_serving(pool, refused(status, raw, headers))
    try:
        rows = msgspec.json.decode(raw)["data"]
        models = {str(row["id"]): row for row in rows}
    except (msgspec.DecodeError, UnicodeDecodeError, KeyError, TypeError):
        raise ServerError(
            f"{url} answers, but not as an OpenAI-compatible server does: /v1/models has no list of models. Check the "
            "address."
        ) from None
    names = ", ".join(sorted(models)[:20])
    if not models:
        raise ServerError(f"{url} serves no model. Load one, or name one with --model.")
    if wanted is None and len(models) > 1:
        raise ServerError(f"{url} serves {len(models):,} models: {names}. Choose one with --model.")
    model = wanted or next(iter(models))
    if model not in models:
        raise ServerError(f"{url} does not serve the model {model!r}. It serves: {names}.")
    longest = models[model].get("max_model_len")
    return Served(model, longest if isinstance(longest, int) else None, models[model])


async def probe(pool: Pool, served: Served, api: str, input_tokens: int, seed: int) -> tuple[Form, int]:
    """How the server wants to be asked, and how many random words make a prompt of `input_tokens`, with what a chat
    template adds. Asks for two answers. Raises ServerError."""
    few = next(random_words(FEW_WORDS, seed))
    form, short = await _first(pool, Form(api, served.model), few)
    many_words = MANY_WORDS if served.max_model_len is None else min(MANY_WORDS, max(served.max_model_len // 4, 16))
    try:
        long = await ask(pool, PATHS[form.api], form.body(next(random_words(many_words, seed)), 1), PROBE_TIMEOUT_S)
    except RequestFailedError as error:
        raise not_serving(pool, error) from None
    if long.prompt_tokens <= short.prompt_tokens:
        return form, input_tokens  # it does not say how many tokens a prompt has
    per_word = (long.prompt_tokens - short.prompt_tokens) / (many_words - FEW_WORDS)
    around = short.prompt_tokens - FEW_WORDS * per_word
    return form, max(round((input_tokens - around) / per_word), 1)


async def _first(pool: Pool, form: Form, prompt: str) -> tuple[Form, Answer]:
    """Leaves out what the server refuses, until it answers."""
    first: RequestFailedError | None = None
    while True:
        try:
            return form, await ask(pool, PATHS[form.api], form.body(prompt, 1), PROBE_TIMEOUT_S)
        except RequestFailedError as error:
            first = first or error
            simpler = form.after(error) if error.status in REFUSED_FIELDS else None
            if simpler is None:
                raise not_serving(pool, first) from None
            form = simpler


async def get(pool: Pool, path: str) -> tuple[int, bytes, dict[str, str]]:
    """Status, the beginning of the body, and the headers. Raises ServerError."""
    body = bytearray()

    def take(_status: int, piece: bytes, _now: float) -> None:
        body.extend(piece[: MOST_MODELS_BYTES - len(body)])

    url = pool.target.url
    try:
        async with asyncio.timeout(MODELS_TIMEOUT_S):
            head = await pool.send("GET", path, b"", take)
    except TimeoutError:
        raise ServerError(f"{url} does not answer: nothing came within {MODELS_TIMEOUT_S:g} s.") from None
    except ConnectionFailedError as error:
        raise ServerError(f"{url} cannot be reached: {error}. {error.remedy}") from None
    except ConnectionBrokenError as error:
        raise ServerError(
            f"{url} does not answer as an HTTP server: {error}. Check the address, and whether it begins with https."
        ) from None
    return head.status, bytes(body), head.headers


def not_serving(pool: Pool, error: RequestFailedError) -> ServerError:
    """What a first request that failed says of the server."""
    url, said = pool.target.url, str(error).rstrip(".")
    match error.status:
        case 401 | 403 if pool.target.key:
            text = f"{url} does not accept this API key: {said}."
        case 401 | 403:
            text = (
                f"{url} requires an API key: {said}. Set INGOT_API_KEY, or name a file that holds it with --key-file."
            )
        case status if 300 <= status < 400:
            where = f" to {error.location}" if error.location else ""
            text = f"{url} redirects{where} ({status}) instead of answering. Check the address."
        case 404:
            text = f"{url} answers, but not as an OpenAI-compatible server does (404: {said}). Check the address."
        case 503:
            when = f"Try again in {error.retry_after} s." if error.retry_after.isdigit() else "Try again later."
            text = f"{url} is not ready: {said}. {when}"
        case 0:
            text = f"{url} gave no usable answer to a first request: {error.kind}, {said}."
        case _:
            text = f"{url} refused a first request with {error.kind}: {said}."
    return ServerError(text)
