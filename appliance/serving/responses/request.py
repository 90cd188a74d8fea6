"""What a request to /v1/responses comes down to: a chat, of the items kept and sent."""

from __future__ import annotations

import asyncio
import contextlib
import re
from collections.abc import Iterator
from typing import Any, Final, NamedTuple

import msgspec

from appliance.serving.answering import Ask
from appliance.serving.body import beside_others
from appliance.serving.chat_request import ChatFields, CheckedChat, chat_ask, check_chat
from appliance.serving.errors import ApiError, PromptTooLongError, bad_request
from appliance.serving.fields import Ignored
from appliance.serving.responses.fields import ResponseFields, TextOptions, check_fields
from appliance.serving.responses.items import Item, check_items
from appliance.serving.responses.messages import Message, chat_messages
from appliance.serving.responses.store import ResponseStore, StoredItems
from appliance.serving.responses.tools import chat_tool_choice, chat_tools, is_hosted
from appliance.serving.responses.truncation import ask_that_fits
from appliance.serving.sampling import SamplingFields
from appliance.serving.served_model import ServedModel
from appliance.serving.structured import JsonSchema, ResponseFormat
from appliance.serving.thinking import ReasoningOptions

# From the names of chat's fields to those of this API.
RENAMED: Final = (
    (re.compile(r"^(tools\[\d+\])\.function\b"), r"\1"),
    (re.compile(r"^tool_choice\.allowed_tools\b"), "tool_choice"),
    (re.compile(r"^(tool_choice.*)\.function\.name$"), r"\1.name"),
    (re.compile(r"^response_format(\.json_schema)?\b"), "text.format"),
    (re.compile(r"^max_(completion_)?tokens$"), "max_output_tokens"),
    (re.compile(r"^messages$"), "input"),
)


class ResponseAsk(NamedTuple):
    """`items` are all that the answer follows, and `kept` whether it is to be stored."""

    fields: ResponseFields
    ask: Ask
    items: list[Item]
    kept: bool


async def response_ask(
    body: bytes, fields: ResponseFields, model: ServedModel, store: ResponseStore, owner: str, ignored: Ignored
) -> ResponseAsk:
    """`body` holds the `fields`. Raises ApiError, which names some fields as chat does: see `in_terms_of_responses`."""

    def translated() -> tuple[list[Item], ChatFields]:
        return translate(fields, StoredItems(store, owner), ignored)

    # However short a request is, what it refers to may be long.
    items, chat = await (asyncio.to_thread(translated) if store.is_on else beside_others(body, translated))
    make_ask = ask_that_fits if fields.truncation == "auto" else chat_ask
    try:
        ask = await make_ask(chat, model, ignored)
    except PromptTooLongError:
        await model.check_fits(fields.instructions or "", "instructions")
        raise
    except ApiError as error:
        raise _with_place_of_tool(error, fields.tools or []) from None
    form_param = ask.form_param and _own_name(ask.form_param)
    ask = msgspec.structs.replace(ask, form_param=form_param, logprobs_param="top_logprobs")
    return ResponseAsk(fields, ask, items, store.is_on and fields.store is not False)


def translate(fields: ResponseFields, stored: StoredItems, ignored: Ignored) -> tuple[list[Item], ChatFields]:
    """All that the answer follows, and as a chat. Raises ApiError."""
    history: list[Item] = []
    if fields.previous_response_id is not None:
        history = stored.of(fields.previous_response_id, "previous_response_id")
    items = [*history, *check_items(fields.input, history, stored.item, ignored)]
    messages = chat_messages(fields.instructions, items)
    if not messages:
        raise bad_request("input has nothing that the model could answer; send at least one message.", "input")
    return items, _chat_fields(fields, messages, ignored)


def check_response(fields: ResponseFields, stored: StoredItems, ignored: Ignored) -> CheckedChat:
    """All that no model need be asked for. Raises ApiError."""
    check_fields(fields, ignored)
    with errors_of_response(fields):
        _, chat = translate(fields, stored, ignored)
        return check_chat(chat, ignored)


@contextlib.contextmanager
def errors_of_response(fields: ResponseFields) -> Iterator[None]:
    """Within it, an ApiError about the chat becomes one about the request."""
    try:
        yield
    except ApiError as error:
        raise in_terms_of_responses(_with_place_of_tool(error, fields.tools or [])) from None


def _with_place_of_tool(error: ApiError, tools: list[Any]) -> ApiError:
    """An error in the third function of a request speaks of its fourth tool, if one was left out before it."""
    found = re.match(r"tools\[(\d+)\]", error.param or "")
    if found is None:
        return error
    places = [index for index, tool in enumerate(tools) if not is_hosted(tool)]
    right = f"tools[{places[int(found[1])]}]"
    return ApiError(
        error.status,
        error.message.replace(found[0], right),
        param=(error.param or "").replace(found[0], right, 1),
        code=error.code,
        headers=error.headers,
    )


def in_terms_of_responses(error: ApiError) -> ApiError:
    """The error with the field's name in this API."""
    param = _own_name(error.param or "")
    if param == (error.param or ""):
        return error
    # The word "messages" may be any part of a sentence.
    message = error.message if error.param == "messages" else error.message.replace(error.param or "", param)
    return ApiError(error.status, message, param=param, code=error.code, headers=error.headers)


def _own_name(param: str) -> str:
    """Of a field of chat."""
    for pattern, name in RENAMED:
        param = pattern.sub(name, param)
    return param


def _chat_fields(fields: ResponseFields, messages: list[Message], ignored: Ignored) -> ChatFields:
    shared = {name: getattr(fields, name) for name in SamplingFields.__struct_fields__}
    shared["response_format"] = _response_format(fields.text)
    return ChatFields(
        **shared,
        messages=messages,
        max_completion_tokens=fields.max_output_tokens,
        logprobs=fields.wants_logprobs,
        top_logprobs=fields.top_logprobs,
        tools=chat_tools(fields.tools or [], ignored),
        tool_choice=chat_tool_choice(fields.tool_choice),
        parallel_tool_calls=fields.parallel_tool_calls,
        reasoning=_reasoning(fields),
        chat_template_kwargs=fields.chat_template_kwargs,
    )


def _reasoning(fields: ResponseFields) -> ReasoningOptions | None:
    given = fields.reasoning
    return None if given is None else ReasoningOptions(effort=given.effort, max_tokens=given.max_tokens)


def _response_format(text: TextOptions | None) -> ResponseFormat | None:
    given = text.format if text else None
    if given is None:
        return None
    if given.type != "json_schema":
        return ResponseFormat(type=given.type, schema=given.schema)
    return ResponseFormat(type=given.type, json_schema=JsonSchema(schema=given.schema))
