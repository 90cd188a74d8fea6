"""One request and its answer: when each token came, and how many there were."""

from __future__ import annotations

import asyncio
import http
import time
from collections.abc import Mapping
from typing import Any, Final, NamedTuple

import msgspec

from appliance.bench.connection import ConnectionBrokenError, ConnectionFailedError, Pool

MOST_LINE_BYTES: Final = 1 << 22
MOST_ERROR_BYTES: Final = 1 << 16
MOST_MESSAGE: Final = 300


class Answer(NamedTuple):
    """When a request was sent, and when each event with a token came: seconds of the machine's monotonic clock."""

    sent: float
    events: list[float]
    tokens: int
    prompt_tokens: int = 0
    usage_told: bool = True  # else each event counts as a token


class RequestFailedError(Exception):
    """A request without a usable answer. `kind` is what failures are counted by."""

    def __init__(self, kind: str, message: str, *, status: int = 0, retry_after: str = "", location: str = "") -> None:
        super().__init__(message[:MOST_MESSAGE])
        self.kind = kind
        self.status = status
        self.retry_after = retry_after
        self.location = location[:MOST_MESSAGE]


class _Delta(msgspec.Struct):
    content: str | None = None
    reasoning: str | None = None
    reasoning_content: str | None = None
    tool_calls: Any = None

    @property
    def has_token(self) -> bool:
        return bool(self.content or self.reasoning_content or self.reasoning or self.tool_calls)


class _Choice(msgspec.Struct):
    text: str | None = None
    delta: _Delta | None = None
    finish_reason: str | None = None

    @property
    def has_token(self) -> bool:
        """A chat begins with the role, and an answer may end with a reason alone. A completion's token may have no text
        of its own."""
        if self.delta is not None:
            return self.delta.has_token
        return bool(self.text) or self.finish_reason is None


class _Usage(msgspec.Struct):
    prompt_tokens: int = 0
    completion_tokens: int = 0


class _Event(msgspec.Struct):
    choices: list[_Choice] = []
    usage: _Usage | None = None
    error: Any = None


_decode_event = msgspec.json.Decoder(_Event).decode


class _Stream:
    """Reads server-sent events from pieces of a body, which may cut through lines."""

    def __init__(self) -> None:
        self.events: list[float] = []
        self.usage: _Usage | None = None
        self.refusal = b""
        self.strays = b""  # of a body without events
        self._rest = b""

    def take(self, status: int, piece: bytes, now: float) -> None:
        if status != http.HTTPStatus.OK:
            self.refusal += piece[: MOST_ERROR_BYTES - len(self.refusal)]
            return
        *lines, self._rest = (self._rest + piece).split(b"\n")
        if len(self._rest) > MOST_LINE_BYTES:
            raise RequestFailedError("not a stream", f"a line of the answer is longer than {MOST_LINE_BYTES:,} bytes")
        for line in lines:
            if line.startswith(b"data:"):
                self._event(line[5:].strip(), now)
            elif line.strip() and not line.startswith((b":", b"event:", b"id:", b"retry:")):
                self.strays = self.strays or line

    def _event(self, data: bytes, now: float) -> None:
        if data == b"[DONE]":
            return
        try:
            event = _decode_event(data)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise RequestFailedError(
                "not a stream", f"an event is not a completion's ({error}): {_text(data)}"
            ) from None
        if event.error:
            raise RequestFailedError("error in the stream", error_message(event.error))
        if any(choice.has_token for choice in event.choices):
            self.events.append(now)
        self.usage = event.usage or self.usage


async def ask(pool: Pool, path: str, body: bytes, timeout_s: float) -> Answer:
    """Send one streamed request. Raises RequestFailedError."""
    stream = _Stream()
    sent = time.perf_counter()
    try:
        async with asyncio.timeout(timeout_s):
            head = await pool.send("POST", path, body, stream.take)
    except TimeoutError:
        raise RequestFailedError("timeout", f"no complete answer within {timeout_s:g} s") from None
    except ConnectionFailedError as error:
        raise RequestFailedError("cannot connect", str(error)) from None
    except ConnectionBrokenError as error:
        raise RequestFailedError("connection broken", str(error)) from None
    if head.status != http.HTTPStatus.OK:
        raise refused(head.status, stream.refusal, head.headers)
    if not stream.events:
        said = f": {_text(stream.strays)}" if stream.strays else ""
        raise RequestFailedError("no token", f"the answer has no event with a token{said}")
    usage = stream.usage
    tokens = usage.completion_tokens if usage else len(stream.events)
    prompt_tokens = usage.prompt_tokens if usage else 0
    return Answer(sent, stream.events, tokens, prompt_tokens, usage is not None)


def refused(status: int, body: bytes, headers: Mapping[str, str]) -> RequestFailedError:
    """What a status other than 200 says, in whichever of the usual shapes."""
    try:
        told = msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError):
        message = _text(body)
    else:
        message = error_message(told.get("error", told) if isinstance(told, dict) else told)
    return RequestFailedError(
        f"HTTP {status}",
        message or "(no message)",
        status=status,
        retry_after=headers.get("retry-after", ""),
        location=headers.get("location", ""),
    )


def error_message(error: Any) -> str:
    if isinstance(error, dict):
        error = error.get("message") or error.get("detail") or error
    return error if isinstance(error, str) else msgspec.json.encode(error).decode()


def _text(raw: bytes) -> str:
    return " ".join(raw[: 4 * MOST_MESSAGE].decode(errors="replace").split())
