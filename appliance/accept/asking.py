"""One request and its whole answer: its text, its tokens with their probabilities, and what is wrong with its form."""

from __future__ import annotations

import asyncio
import http
import time
from typing import Any, Final, NamedTuple

import msgspec

from appliance.bench.answers import MOST_LINE_BYTES, RequestFailedError, error_message, refused
from appliance.bench.connection import ConnectionBrokenError, ConnectionFailedError, Pool

COMPLETIONS: Final = "/completions"
CHAT: Final = "/chat/completions"
MOST_BODY_BYTES: Final = 1 << 28  # the scores of a long prompt take many
FINISH_REASONS: Final = ("stop", "length", "tool_calls", "content_filter")


class Token(NamedTuple):
    """As `logprobs` tell it: `name` is "token_id:281" where the server names ids, else the token's text. `logprob` is
    None for the first token of an echo. `top` are the likeliest tokens at its place."""

    name: str
    logprob: float | None
    top: dict[str, float]


class Call(NamedTuple):
    """Of a tool; `arguments` is JSON."""

    name: str
    arguments: str


class Reply(msgspec.Struct, kw_only=True):
    """`tokens` are empty where no logprobs were asked for. Times are seconds from when the request was sent; `events`
    has one for each event with text. `problems` say what no answer's form may have."""

    sent: float = 0.0
    text: str = ""
    reasoning: str = ""
    calls: list[Call] = []
    finish_reason: str | None = None
    tokens: list[Token] = []
    prompt_tokens: int | None = None
    output_tokens: int | None = None
    cached_tokens: int = 0
    events: list[float] = []
    seconds: float = 0.0
    problems: list[str] = []


class _Logprobs(msgspec.Struct):
    tokens: list[str] = []
    token_logprobs: list[float | None] = []
    top_logprobs: list[dict[str, float] | None] | None = None


class _Function(msgspec.Struct, frozen=True):
    name: str | None = None
    arguments: str | None = None


class _Call(msgspec.Struct):
    index: int = 0
    function: _Function = _Function()


class _Message(msgspec.Struct):
    content: str | None = None
    reasoning_content: str | None = None
    tool_calls: list[_Call] | None = None


class _Choice(msgspec.Struct):
    text: str | None = None
    message: _Message | None = None
    delta: _Message | None = None
    logprobs: _Logprobs | None = None
    finish_reason: str | None = None


class _Cached(msgspec.Struct):
    cached_tokens: int | None = None


class _Usage(msgspec.Struct):
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    prompt_tokens_details: _Cached | None = None


class _Event(msgspec.Struct):
    choices: list[_Choice] = []
    usage: _Usage | None = None
    error: Any = None


_decode = msgspec.json.Decoder(_Event, strict=False).decode


class _Cut(Exception):
    """The client has seen enough, and goes."""


class _Reading:
    """Puts an answer together, from the pieces of a body that may cut through lines."""

    def __init__(self, *, streamed: bool, leave_after: int | None = None) -> None:
        self.reply = Reply(sent=time.perf_counter())
        self.raw = bytearray()
        self.status = 0
        self._streamed = streamed
        self._leave_after = leave_after
        self._calls: dict[int, list[str]] = {}
        self._done = False

    def take(self, status: int, piece: bytes, now: float) -> None:
        self.status = status
        self.raw += piece
        if status != http.HTTPStatus.OK or not self._streamed:
            if len(self.raw) > MOST_BODY_BYTES:
                raise RequestFailedError("too long", f"the answer has more than {MOST_BODY_BYTES:,} bytes")
            return
        *lines, rest = self.raw.split(b"\n")
        if len(rest) > MOST_LINE_BYTES:
            raise RequestFailedError("not a stream", f"a line of the answer is longer than {MOST_LINE_BYTES:,} bytes")
        self.raw = bytearray(rest)
        for line in lines:
            if line.startswith(b"data:"):
                self._event(bytes(line[5:]).strip(), now)

    def end(self, now: float) -> Reply:
        if not self._streamed:
            self._add(bytes(self.raw), now)
        elif not self._done:
            self._wrong("the stream ended without [DONE]")
        reply = self.reply
        reply.seconds = now - reply.sent
        reply.calls = [Call(name, arguments) for _, (name, arguments) in sorted(self._calls.items())]
        if reply.finish_reason is None:
            self._wrong("it has no finish_reason")
        elif reply.finish_reason not in FINISH_REASONS:
            self._wrong(f"its finish_reason is {reply.finish_reason!r}")
        return reply

    def _event(self, data: bytes, now: float) -> None:
        if self._done:
            self._wrong("something follows [DONE]")
        if data == b"[DONE]":
            self._done = True
            return
        self._add(data, now)

    def _add(self, data: bytes, now: float) -> None:
        try:
            event = _decode(data)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            shown = " ".join(data[:200].decode(errors="replace").split())
            raise RequestFailedError("not an answer", f"{error}: {shown}") from None
        if event.error:
            raise RequestFailedError("error in the answer", error_message(event.error))
        for choice in event.choices[:1]:
            self._choice(choice, now)
        if event.usage is not None:
            self.reply.prompt_tokens, self.reply.output_tokens = (
                event.usage.prompt_tokens,
                event.usage.completion_tokens,
            )
            details = event.usage.prompt_tokens_details
            self.reply.cached_tokens = (details.cached_tokens or 0) if details else 0

    def _choice(self, choice: _Choice, now: float) -> None:
        reply, message = self.reply, choice.message or choice.delta or _Message()
        gained = (choice.text or "") + (message.content or "")
        if reply.finish_reason is not None and (gained or message.tool_calls):
            self._wrong("text follows its finish_reason")
        reply.text += gained
        reply.reasoning += message.reasoning_content or ""
        for place, call in enumerate(message.tool_calls or []):
            parts = self._calls.setdefault(call.index if choice.message is None else place, ["", ""])
            parts[0] += call.function.name or ""
            parts[1] += call.function.arguments or ""
        self._logprobs(choice.logprobs)
        reply.finish_reason = choice.finish_reason or reply.finish_reason
        if gained or message.reasoning_content or message.tool_calls or choice.logprobs:
            reply.events.append(now - reply.sent)
            if self._leave_after is not None and len(reply.events) >= self._leave_after:
                raise _Cut

    def _logprobs(self, told: _Logprobs | None) -> None:
        if told is None or not told.tokens:
            return
        tops = told.top_logprobs or [None] * len(told.tokens)
        if not len(told.tokens) == len(told.token_logprobs) == len(tops):
            self._wrong("its logprobs are of different lengths")
        for name, logprob, top in zip(told.tokens, told.token_logprobs, tops, strict=False):
            self.reply.tokens.append(Token(name, logprob, top or {}))

    def _wrong(self, what: str) -> None:
        if what not in self.reply.problems:
            self.reply.problems.append(what)


async def ask(pool: Pool, path: str, body: dict[str, Any], timeout_s: float) -> Reply:
    """The whole answer. Raises RequestFailedError."""
    reading = _Reading(streamed=bool(body.get("stream")))
    await _send(pool, path, body, reading, timeout_s)
    return reading.end(time.perf_counter())


async def leave(pool: Pool, path: str, body: dict[str, Any], timeout_s: float, after: int | float) -> Reply:
    """The beginning of a streamed answer: the connection is closed after so many events, or, of a float, so many
    seconds. Raises RequestFailedError."""
    reading = _Reading(streamed=True, leave_after=after if isinstance(after, int) else None)
    try:
        async with asyncio.timeout(after if isinstance(after, float) else None):
            await _send(pool, path, body, reading, timeout_s)
    except (_Cut, TimeoutError):
        pass  # as was wanted
    reading.reply.seconds = time.perf_counter() - reading.reply.sent
    return reading.reply


async def post_json(pool: Pool, path: str, body: dict[str, Any], timeout_s: float) -> Any:
    """What is beside the answers of a model. Raises RequestFailedError."""
    reading = _Reading(streamed=False)
    await _send(pool, path, body, reading, timeout_s)
    try:
        return msgspec.json.decode(reading.raw)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise RequestFailedError("not an answer", f"{path}: {error}") from None


async def _send(pool: Pool, path: str, body: dict[str, Any], reading: _Reading, timeout_s: float) -> None:
    try:
        async with asyncio.timeout(timeout_s):
            head = await pool.send("POST", path, msgspec.json.encode(body), reading.take)
    except TimeoutError:
        raise RequestFailedError("timeout", f"no complete answer within {timeout_s:g} s") from None
    except ConnectionFailedError as error:
        raise RequestFailedError("cannot connect", str(error)) from None
    except ConnectionBrokenError as error:
        raise RequestFailedError("connection broken", str(error)) from None
    if head.status != http.HTTPStatus.OK:
        raise refused(head.status, bytes(reading.raw), head.headers)
