"""Writes answers in the form of /v1/responses."""

from __future__ import annotations

import secrets
import time
from collections.abc import AsyncIterator
from typing import Any

from appliance.core_protocol import FinishReason
from appliance.serving.answer_format import TokenTexts, usage
from appliance.serving.answering import Answering
from appliance.serving.choice import Choice, Piece
from appliance.serving.errors import ApiError
from appliance.serving.respond import Answer
from appliance.serving.responses.output import Event, Logprobs, Output
from appliance.serving.responses.request import ResponseAsk
from appliance.serving.responses.store import ResponseStore, StoredResponse
from appliance.serving.served_model import ServedModel
from appliance.serving.stream import HEARTBEAT, named_frame


class ResponseAnswer(Answer):
    """`owner` is the id of the API key for which the answer is kept."""

    def __init__(self, model: ServedModel, asked: ResponseAsk, store: ResponseStore, owner: str) -> None:
        self._asked = asked
        self._store = store
        self._owner = owner
        self._texts = TokenTexts(model)
        self._output = Output()
        self._sequence_number = 0
        self._head = {
            "id": f"resp_{secrets.token_hex(24)}",
            "object": "response",
            "created_at": int(time.time()),
            "model": model.name,
        }
        self._echo = _echo(asked, model)

    def whole(self, choices: list[Choice], pieces: list[Piece]) -> dict[str, Any]:
        choice, piece = choices[0], pieces[0]
        for _ in self._output.add(piece, self._logprobs(piece)):
            pass
        ended = _status(piece)
        for _ in self._output.finish(choice, complete=ended == "completed"):
            pass
        return self._ended(choice, ended)

    async def frames(self, answering: Answering) -> AsyncIterator[bytes]:
        try:
            begun = self._response("in_progress")
            yield self._frame({"type": "response.created", "response": begun})
            yield self._frame({"type": "response.in_progress", "response": begun})
            status = "completed"
            choice = answering.choices[0]
            async for came in answering.pieces():
                if came is None:
                    yield HEARTBEAT
                    continue
                _, piece = came
                for event in self._output.add(piece, self._logprobs(piece)):
                    yield self._frame(event)
                status = _status(piece)
            for event in self._output.finish(choice, complete=status == "completed"):
                yield self._frame(event)
            yield self._frame({"type": f"response.{status}", "response": self._ended(choice, status)})
        finally:
            answering.close()

    def error_frame(self, error: ApiError) -> bytes:
        code = "server_error" if error.status >= 500 else "invalid_prompt"
        failed = {**self._response("failed"), "error": {"code": code, "message": error.message}}
        told = {"type": "error", "code": error.code, "message": error.message, "param": error.param}
        return self._frame(told) + self._frame({"type": "response.failed", "response": failed})

    def _frame(self, event: Event) -> bytes:
        numbered = {"type": event["type"], "sequence_number": self._sequence_number, **event}
        self._sequence_number += 1
        return named_frame(event["type"], numbered, None)

    def _logprobs(self, piece: Piece) -> Logprobs:
        return [self._texts.described(entry) for entry in piece.logprobs]

    def _ended(self, choice: Choice, status: str) -> dict[str, Any]:
        response = self._response(status)
        response["usage"] = _usage(choice)
        if status == "completed":
            response["completed_at"] = int(time.time())
        else:
            response["incomplete_details"] = {"reason": "max_output_tokens"}
        if self._asked.kept:
            self._store.keep(self._owner, StoredResponse(response, self._asked.items))
        return response

    def _response(self, status: str) -> dict[str, Any]:
        now: dict[str, Any] = {"completed_at": None, "error": None, "incomplete_details": None, "usage": None}
        return {**self._head, "status": status, **now, "output": self._output.items, **self._echo}


def _status(piece: Piece) -> str:
    return "incomplete" if piece.finish_reason is FinishReason.LENGTH else "completed"


def _usage(choice: Choice) -> dict[str, Any]:
    spent = usage([choice.prompt_token_ids], [choice])
    return {
        "input_tokens": spent["prompt_tokens"],
        # Nothing is charged for what enters the prefix cache.
        "input_tokens_details": {**spent["prompt_tokens_details"], "cache_write_tokens": 0},
        "output_tokens": spent["completion_tokens"],
        "output_tokens_details": spent["completion_tokens_details"],
        "total_tokens": spent["total_tokens"],
    }


def _echo(asked: ResponseAsk, model: ServedModel) -> dict[str, Any]:
    """What an answer says of its request, as the defaults have completed it."""
    fields = asked.fields
    text, reasoning = fields.text, fields.reasoning
    return {
        "instructions": fields.instructions,
        "max_output_tokens": fields.max_output_tokens,
        "max_tool_calls": fields.max_tool_calls,
        "metadata": fields.metadata or {},
        "parallel_tool_calls": fields.parallel_tool_calls is not False,
        "previous_response_id": fields.previous_response_id,
        "reasoning": {
            "effort": reasoning.effort if reasoning else None,
            "summary": reasoning.summary if reasoning else None,
        },
        "store": asked.kept,
        "temperature": fields.temperature,
        "text": {"format": (text.format if text else None) or {"type": "text"}, "verbosity": "medium"},
        "tool_choice": fields.tool_choice or "auto",
        "tools": fields.tools or [],
        "top_logprobs": fields.top_logprobs or 0,
        "top_p": fields.top_p,
        "truncation": fields.truncation or "disabled",
        "user": fields.user,
        "background": False,
    }
