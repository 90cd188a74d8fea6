"""`POST /v1/messages` and `POST /v1/messages/count_tokens`."""

from __future__ import annotations

from typing import Any

from litestar import Request, Response, post

from appliance.serving.access import key_of
from appliance.serving.answering import Answering
from appliance.serving.anthropic.answer import MessageAnswer
from appliance.serving.anthropic.answers import AnthropicError, AnthropicMessage, AnthropicTokenCount
from appliance.serving.anthropic.fields import COUNT, MESSAGES, MessagesFields, PromptFields
from appliance.serving.anthropic.request import count_prompt, messages_ask, translate
from appliance.serving.body import beside_others, read_body
from appliance.serving.fields import read_fields
from appliance.serving.parts import TheFrontDoor
from appliance.serving.request_id import request_id
from appliance.serving.respond import GENERATING, Answered, respond


@post(
    "/v1/messages",
    status_code=200,
    summary="Answer messages, as Anthropic's API",
    body=MessagesFields,
    answer=AnthropicMessage,
    streams=True,
    errors=GENERATING,
    error=AnthropicError,
)
async def messages(request: Request[Any, Any, Any], front_door: TheFrontDoor) -> Answered:
    client, model = front_door.serving()
    body = await read_body(request)
    fields, ignored = await read_fields(body, MessagesFields, strict=model.strict_requests, api=MESSAGES)
    model.check_name(fields.model)
    translated = await beside_others(body, lambda: translate(fields, ignored))
    ask = await messages_ask(translated, model, ignored)
    with translated.origins.in_errors():
        answering = Answering(client, model, front_door.metrics, ask, key_of(request))
    answer = MessageAnswer(
        model.name,
        shows_thinking=translated.shows_thinking,
        cut_short=ask.max_tokens[0] < fields.max_tokens,
        request_id=request_id(request.scope),
    )
    return await respond(request, answering, answer, stream=fields.stream, headers=ignored.headers)


@post(
    "/v1/messages/count_tokens",
    status_code=200,
    summary="Count a prompt's tokens, as Anthropic's API",
    body=PromptFields,
    answer=AnthropicTokenCount,
    errors=(404, 503),
    error=AnthropicError,
)
async def count_tokens(request: Request[Any, Any, Any], front_door: TheFrontDoor) -> Response[dict[str, Any]]:
    """Of a prompt of any length."""
    _, model = front_door.serving()
    body = await read_body(request)
    fields, ignored = await read_fields(body, PromptFields, strict=model.strict_requests, api=COUNT)
    model.check_name(fields.model)
    translated = await beside_others(body, lambda: translate(fields, ignored))
    count = await count_prompt(translated, model, ignored)
    return Response({"input_tokens": count}, headers=ignored.headers)


ROUTES = (messages, count_tokens)
