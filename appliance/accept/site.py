"""The server that is to be accepted: what it serves, what it can be asked, and how it is."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any, Final

import msgspec

from appliance.accept.asking import CHAT, COMPLETIONS, Reply, Token, ask, leave, post_json
from appliance.accept.sameness import tie_tolerance
from appliance.bench.answers import RequestFailedError
from appliance.bench.connection import Pool
from appliance.bench.prompts import random_words
from appliance.bench.server import ServerError, find_model, get, not_serving
from appliance.bench.target import Target

PROBE_TIMEOUT_S: Final = 120.0
TOP: Final = 5  # alternatives that greedy answers are compared with
PROBE_TEXT: Final = "The Ingot, naïve & 東京: 1 234.5 kg; if (x != y) { return; }\n"
DEFAULT_CONTEXT: Final = 2048  # assumed of a server that does not tell it
PROBE_WORDS: Final = (2, 22)
REFUSED: Final = (400, 404, 405, 422, 501)
Holds = Callable[[Reply], bool]
"""Whether an answer shows that the server did what it was asked."""
METRIC: Final = re.compile(r"^([a-zA-Z_:][\w:]*)(\{[^}]*\})? ([-+.\deE]+|NaN|[-+]Inf)$", re.MULTILINE)
# Fields of completions that not every server takes, and what is lost where one does not.
OPTIONAL: Final[dict[str, dict[str, Any]]] = {
    "usage": {"stream_options": {"include_usage": True}},
    "ids": {"return_tokens_as_token_ids": True},
    "salt": {"cache_salt": "ingot-accept"},
    "length": {"ignore_eos": True},
}


class Site:
    """`missing` says of each thing that the server cannot be asked why; what is not in it, it can be asked."""

    def __init__(self, target: Target, model: str | None, timeout_s: float) -> None:
        self.url = target.url
        self.timeout_s = timeout_s
        self.pool = Pool(target)
        self._beside = Pool(target._replace(prefix=""))
        self._wanted = model
        self.model = ""
        self.max_model_len: int = DEFAULT_CONTEXT
        self.digest: str | None = None
        self.dtype: str | None = None
        self.device: str | None = None
        self.owner: str | None = None
        self.tells_context = False
        self.missing: dict[str, str] = {}
        self.tokens_a_word = 2.0
        self.probes: list[int] = []  # the tokens of PROBE_TEXT

    def close(self) -> None:
        self.pool.close()
        self._beside.close()

    def can(self, *abilities: str) -> bool:
        return not any(ability in self.missing for ability in abilities)

    def why_not(self, *abilities: str) -> str:
        return next(self.missing[ability] for ability in abilities if ability in self.missing)

    @property
    def tolerance(self) -> float:
        """Of a logprob, where two answers of this server are compared."""
        return tie_tolerance(self.dtype)

    @property
    def is_exact(self) -> bool:
        """Whether its answers can be compared by their texts alone: without ties."""
        return self.dtype == "float32"

    @property
    def why_not_comparable(self) -> str | None:
        """Of greedy answers with one another."""
        if self.is_exact or self.can("scores"):
            return None
        return f"a tie could not be told from a fault: {self.missing['scores']}"

    # ----------------------------------------------------------------------------------------------------------------
    # A look at it
    # ----------------------------------------------------------------------------------------------------------------

    async def look(self) -> None:
        """Raises ServerError if it serves no model, or gives no answer."""
        served = await find_model(self.pool, self._wanted)
        about = served.about
        if about.get("running") is False:
            raise ServerError(
                f"{self.url} does not run {served.model!r} now, and would start it for a request. Start it first."
            )
        self.model = served.model
        self.tells_context = served.max_model_len is not None
        self.max_model_len = served.max_model_len or DEFAULT_CONTEXT
        self.digest, self.dtype, self.device = (_text(about, name) for name in ("digest", "dtype", "device"))
        self.owner = _text(about, "owned_by")
        await self._find_tokenizer()
        await self._find_abilities()
        few, many = [await self._prompt_tokens(words) for words in PROBE_WORDS]
        if few and many and many > few:
            self.tokens_a_word = (many - few) / (PROBE_WORDS[1] - PROBE_WORDS[0])

    async def _prompt_tokens(self, words: int) -> int | None:
        try:
            reply = await self.complete({"prompt": next(random_words(words, 0)), "max_tokens": 1, "temperature": 0})
        except RequestFailedError as error:
            raise not_serving(self.pool, error) from None
        return reply.prompt_tokens

    async def _find_tokenizer(self) -> None:
        try:
            self.probes = await self.tokenize(PROBE_TEXT, special=False)
        except RequestFailedError as error:
            self.missing["tokenize"] = f"the server has no /tokenize ({error.kind})"

    async def _find_abilities(self) -> None:
        plain: dict[str, Any] = {"prompt": "The sky is", "max_tokens": 2, "temperature": 0}
        try:
            await self.complete(plain)
        except RequestFailedError as error:
            raise not_serving(self.pool, error) from None
        for ability, fields in OPTIONAL.items():
            streamed = {"stream": True} if ability == "usage" else {}
            await self._try(ability, plain | streamed | fields, _TOLD.get(ability))
        await self._try("scores", plain | {"logprobs": TOP}, _has_scores)
        if self.can("ids"):
            scored = plain | {"logprobs": 1} | OPTIONAL["ids"]
            await self._try(
                "ids", scored, lambda reply: all(token.name.startswith("token_id:") for token in reply.tokens)
            )
        if self.can("tokenize"):
            ids = plain | {"prompt": self.probes}
            await self._try("id-prompts", ids, lambda reply: reply.prompt_tokens in (None, len(self.probes)))
        else:
            self.missing["id-prompts"] = self.missing["tokenize"]
        if self.can("id-prompts", "scores", "ids"):
            echo = plain | {"prompt": self.probes, "echo": True, "logprobs": 1} | OPTIONAL["ids"]
            await self._try("echo", echo, lambda reply: len(reply.tokens) >= len(self.probes) + 1)
        else:
            self.missing["echo"] = self.why_not("id-prompts", "scores", "ids")
        chat: dict[str, Any] = {"messages": [{"role": "user", "content": "Hello"}], "max_tokens": 2, "temperature": 0}
        await self._try("chat", chat, None)

    async def _try(self, ability: str, body: dict[str, Any], holds: Holds | None) -> None:
        path = CHAT if "messages" in body else COMPLETIONS
        try:
            reply = await ask(self.pool, path, {"model": self.model, **body}, PROBE_TIMEOUT_S)
        except RequestFailedError as error:
            if error.status not in REFUSED:
                raise not_serving(self.pool, error) from None
            self.missing[ability] = f"the server refuses {_NAMES[ability]} ({error.kind}: {error})"
        else:
            if holds is not None and not holds(reply):
                self.missing[ability] = f"the server ignores {_NAMES[ability]}"

    # ----------------------------------------------------------------------------------------------------------------
    # Requests
    # ----------------------------------------------------------------------------------------------------------------

    def fields(self, *abilities: str) -> dict[str, Any]:
        """Those of OPTIONAL that the server takes."""
        taken: dict[str, Any] = {}
        for ability in abilities:
            taken |= OPTIONAL[ability] if self.can(ability) else {}
        return taken

    @property
    def scored(self) -> dict[str, Any]:
        """What makes a completion tell its tokens and their probabilities, as far as the server does."""
        return {"logprobs": TOP, **self.fields("ids")} if self.can("scores") else {}

    async def complete(self, body: Mapping[str, Any]) -> Reply:
        return await self.ask(COMPLETIONS, body)

    async def ask(self, path: str, body: Mapping[str, Any]) -> Reply:
        """Raises RequestFailedError."""
        return await ask(self.pool, path, {"model": self.model, **body}, self.timeout_s)

    async def leave(self, path: str, body: Mapping[str, Any], after: int | float) -> Reply:
        """See `appliance.accept.asking.leave`."""
        return await leave(self.pool, path, {"model": self.model, **body}, self.timeout_s, after)

    async def tokenize(self, text: str, *, special: bool) -> list[int]:
        """Raises RequestFailedError."""
        body = {"model": self.model, "prompt": text, "add_special_tokens": special}
        told = await post_json(self._beside, "/tokenize", body, self.timeout_s)
        tokens = told.get("tokens") if isinstance(told, dict) else None
        if not isinstance(tokens, list) or not all(isinstance(token, int) for token in tokens):
            raise RequestFailedError("not an answer", "/tokenize gives no list of tokens")
        return tokens

    # ----------------------------------------------------------------------------------------------------------------
    # Beside /v1
    # ----------------------------------------------------------------------------------------------------------------

    async def state(self) -> dict[str, Any] | None:
        """`/appliance/state`; None where there is none, or it may not be seen."""
        return await self._look_at("/appliance/state")

    async def hardware(self) -> dict[str, Any] | None:
        return await self._look_at("/appliance/hardware")

    async def version(self) -> str:
        """As vLLM tells it; "" where it is not told."""
        told = await self._look_at("/version") or {}
        return _text(told, "version") or ""

    async def metrics(self) -> dict[str, float]:
        """Sums over the labels; empty where there are none."""
        try:
            status, raw, _ = await get(self._beside, "/metrics")
        except ServerError:
            return {}
        found: dict[str, float] = {}
        if status == 200:
            for name, _labels, value in METRIC.findall(raw.decode(errors="replace")):
                found[name] = found.get(name, 0.0) + float(value)
        return found

    async def in_engine(self) -> float | None:
        """Requests that run or wait; None where no metric says it."""
        metrics = await self.metrics()
        for maker in ("ingot", "vllm"):
            names = (f"{maker}:num_requests_running", f"{maker}:num_requests_waiting")
            if all(name in metrics for name in names):
                return sum(metrics[name] for name in names)
        return None

    async def _look_at(self, path: str) -> dict[str, Any] | None:
        try:
            status, raw, _ = await get(self._beside, path)
            told = msgspec.json.decode(raw) if status == 200 else None
        except (ServerError, msgspec.DecodeError):
            return None
        return told if isinstance(told, dict) else None


_NAMES: Final = {
    "usage": "stream_options",
    "ids": "return_tokens_as_token_ids",
    "salt": "cache_salt",
    "length": "ignore_eos",
    "scores": "logprobs of completions",
    "id-prompts": "prompts of token ids",
    "echo": "echo with logprobs",
    "chat": "chats",
}


def _has_scores(reply: Reply) -> bool:
    return bool(reply.tokens) and all(_is_scored(token) for token in reply.tokens)


def _is_scored(token: Token) -> bool:
    return token.logprob is not None and bool(token.top)


_TOLD: Final[dict[str, Holds]] = {"usage": lambda reply: reply.output_tokens is not None}


def _text(about: Mapping[str, Any], name: str) -> str | None:
    value = about.get(name)
    return value if isinstance(value, str) and value else None
