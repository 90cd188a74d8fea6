"""`POST /v1/chat/completions`: messages through the model's own template."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from typing import Any

from litestar import Request, post

from appliance.serving.access import key_of
from appliance.serving.answer_format import TokenTexts, chunk_usage, new_id, usage
from appliance.serving.answering import Answering, Ask
from appliance.serving.body import read_body
from appliance.serving.chat_request import ChatFields, chat_ask
from appliance.serving.choice import Choice, Piece
from appliance.serving.fields import read_fields
from appliance.serving.json_list import json_list
from appliance.serving.message_form import chat_finish_reason, delta, message
from appliance.serving.openapi.answers import ChatCompletion
from appliance.serving.parts import TheFrontDoor
from appliance.serving.respond import GENERATING, Answer, Answered, respond
from appliance.serving.served_model import ServedModel
from appliance.serving.stream import DONE, HEARTBEAT, frame


@post(
    "/v1/chat/completions",
    status_code=200,
    summary="Answer messages",
    body=ChatFields,
    answer=ChatCompletion,
    streams=True,
    errors=GENERATING,
)
async def chat_completions(request: Request[Any, Any, Any], front_door: TheFrontDoor) -> Answered:
    client, model = front_door.serving()
    fields, ignored = await read_fields(await read_body(request), ChatFields, strict=model.strict_requests)
    model.check_name(fields.model)
    ask = await chat_ask(fields, model, ignored)
    answering = Answering(client, model, front_door.metrics, ask, key_of(request))
    answer = ChatAnswer(model, ask, fields)
    return await respond(request, answering, answer, stream=fields.stream, headers=ignored.headers)


class ChatAnswer(Answer):
    """Writes answers in the form of /v1/chat/completions."""

    def __init__(self, model: ServedModel, ask: Ask, fields: ChatFields) -> None:
        self._ask = ask
        self._fields = fields
        self._texts = TokenTexts(model)
        self._id = new_id("chatcmpl")
        self._created = int(time.time())
        self._model = model.name
        self._include_reasoning = fields.shows_reasoning

    def whole(self, choices: list[Choice], pieces: list[Piece]) -> dict[str, Any]:
        written = []
        for choice, piece in zip(choices, pieces, strict=True):
            whole = message(piece, include_reasoning=self._include_reasoning)
            written.append(self._choice(choice, piece, message=whole))
        extra = {"prompt_token_ids": self._ask.prompts[0]} if self._fields.return_token_ids else {}
        spent = usage(self._ask.prompts, choices)
        return {**self._head("chat.completion"), "choices": written, "usage": spent, **extra}

    async def frames(self, answering: Answering) -> AsyncIterator[bytes]:
        try:
            choices = answering.choices
            head = self._head("chat.completion.chunk")
            begun: set[int] = set()
            async for came in answering.pieces():
                if came is None:
                    yield HEARTBEAT
                    continue
                choice, piece = came
                gained = delta(piece, include_reasoning=self._include_reasoning)
                extra: dict[str, Any] = {}
                if choice.index not in begun:
                    gained = {"role": "assistant", "content": "", **gained}
                    if self._fields.return_token_ids and not begun:
                        extra = {"prompt_token_ids": self._ask.prompts[0]}
                begun.add(choice.index)
                if gained or piece.finish_reason or self._tells_tokens:
                    extra |= chunk_usage(self._fields, choice)
                    yield frame({**head, "choices": [self._choice(choice, piece, delta=gained)], **extra})
            last = b""
            if self._fields.include_usage:
                last = frame({**head, "choices": [], "usage": usage(self._ask.prompts, choices)})
            yield last + DONE
        finally:
            answering.close()

    @property
    def _tells_tokens(self) -> bool:
        """Whether frames say something of their tokens, also of those that add no text."""
        return self._ask.logprobs is not None or bool(self._fields.return_token_ids)

    def _head(self, kind: str) -> dict[str, Any]:
        return {"id": self._id, "object": kind, "created": self._created, "model": self._model}

    def _choice(self, choice: Choice, piece: Piece, **content: Any) -> dict[str, Any]:
        """`content` is a whole message or the delta of one."""
        with_ids = bool(self._fields.return_token_ids)
        logprobs = json_list(self._texts.described(entry, with_ids=with_ids) for entry in piece.logprobs)
        written = {
            "index": choice.index,
            **content,
            "logprobs": {"content": logprobs} if self._ask.logprobs is not None else None,
            "finish_reason": chat_finish_reason(choice, piece),
        }
        if with_ids:
            written["token_ids"] = piece.token_ids
        return written
