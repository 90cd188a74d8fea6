"""Writes answers in the forms of /api/chat and /api/generate: as lines of JSON, or as one object."""

from __future__ import annotations

import time
from abc import abstractmethod
from collections.abc import AsyncIterator, Callable
from datetime import UTC, datetime
from typing import Any, ClassVar, NamedTuple

import msgspec

from appliance.serving.answering import Answering
from appliance.serving.choice import Choice, Piece
from appliance.serving.errors import ApiError
from appliance.serving.parsers.base import CallDelta
from appliance.serving.respond import Answer
from appliance.serving.stream import encode

LINES = "application/x-ndjson"


class Figures(NamedTuple):
    """Of one answer, once it has ended."""

    first_token_at: float | None
    prompt_tokens: int
    tokens: int


class GenerationAnswer(Answer):
    """`model` is the name that the client has asked for. Its subclasses say where the words go."""

    media_type: ClassVar[str] = LINES

    def __init__(self, model: str, *, shows_thinking: bool, began: float) -> None:
        self._model = model
        self._shows_thinking = shows_thinking
        self._began = began

    def whole(self, choices: list[Choice], pieces: list[Piece]) -> dict[str, Any]:
        return self.put_together(pieces[0], _figures(choices[0]))

    async def frames(self, answering: Answering) -> AsyncIterator[bytes]:
        try:
            pieces = (None if came is None else came[1] async for came in answering.pieces())
            async for line in self.lines(pieces, lambda: _figures(answering.choices[0])):
                yield line
        finally:
            answering.close()

    def put_together(self, piece: Piece, figures: Figures) -> dict[str, Any]:
        """The whole answer, in one piece."""
        calls = CompleteCalls()
        complete = [*calls.add(piece.calls), *calls.end()]
        return {**self._part(piece, complete), **self._end(figures, piece)}

    async def lines(self, pieces: AsyncIterator[Piece | None], figures: Callable[[], Figures]) -> AsyncIterator[bytes]:
        """Of a stream. None is silence, in which an empty part keeps the connection open."""
        calls = CompleteCalls()
        async for came in pieces:
            piece = came or Piece()
            complete = calls.add(piece.calls)
            if piece.finish_reason is not None:
                complete += calls.end()
            if came is None or piece.text or complete or (piece.reasoning and self._shows_thinking):
                yield _line({**self._part(piece, complete), "done": False})
            if piece.finish_reason is not None:
                yield _line({**self._part(Piece(), []), **self._end(figures(), piece)})

    def loaded(self) -> dict[str, Any]:
        """The answer to a request that asks for nothing, which clients send to have the model loaded."""
        return {**self._part(Piece(), []), "done": True, "done_reason": "load"}

    def error_frame(self, error: ApiError) -> bytes:
        return _line({"error": error.message})

    def _part(self, piece: Piece, calls: list[dict[str, Any]]) -> dict[str, Any]:
        thinking = piece.reasoning if self._shows_thinking else ""
        return {"model": self._model, "created_at": timestamp(time.time()), **self._words(piece.text, thinking, calls)}

    @abstractmethod
    def _words(self, text: str, thinking: str, calls: list[dict[str, Any]]) -> dict[str, Any]: ...

    def _end(self, figures: Figures, piece: Piece) -> dict[str, Any]:
        """Durations are in nanoseconds. The model had been loaded before."""
        now = time.perf_counter()
        first = figures.first_token_at or now
        return {
            "done": True,
            "done_reason": piece.finish_reason,
            "total_duration": _nanoseconds(now - self._began),
            "load_duration": 0,
            "prompt_eval_count": figures.prompt_tokens,
            "prompt_eval_duration": _nanoseconds(first - self._began),
            "eval_count": figures.tokens,
            "eval_duration": _nanoseconds(now - first),
        }


class ChatAnswer(GenerationAnswer):
    def _words(self, text: str, thinking: str, calls: list[dict[str, Any]]) -> dict[str, Any]:
        message: dict[str, Any] = {"role": "assistant", "content": text}
        if thinking:
            message["thinking"] = thinking
        if calls:
            message["tool_calls"] = calls
        return {"message": message}


class GenerateAnswer(GenerationAnswer):
    def _words(self, text: str, thinking: str, calls: list[dict[str, Any]]) -> dict[str, Any]:
        return {"response": text, "thinking": thinking} if thinking else {"response": text}


class CompleteCalls:
    """Calls, each as soon as it is complete: its arguments are an object here. One that was cut off is none, since
    clients run what they get."""

    def __init__(self) -> None:
        self._name = ""
        self._index = -1
        self._arguments: list[str] = []

    def add(self, deltas: list[CallDelta]) -> list[dict[str, Any]]:
        complete = []
        for delta in deltas:
            if delta.name is not None:
                complete += self.end()
                self._name, self._index = delta.name, delta.index
            self._arguments.append(delta.arguments)
        return complete

    def end(self) -> list[dict[str, Any]]:
        name, text = self._name, "".join(self._arguments)
        self._name = ""
        self._arguments.clear()
        try:
            arguments = msgspec.json.decode(text)
        except (msgspec.DecodeError, RecursionError):
            return []
        if not name or not isinstance(arguments, dict):
            return []
        return [{"function": {"index": self._index, "name": name, "arguments": arguments}}]


def timestamp(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat().replace("+00:00", "Z")


def _figures(choice: Choice) -> Figures:
    return Figures(choice.first_token_at, len(choice.prompt_token_ids), choice.num_tokens)


def _line(content: dict[str, Any]) -> bytes:
    return encode(content) + b"\n"


def _nanoseconds(seconds: float) -> int:
    return round(seconds * 1e9)
