"""Checks the messages of a chat and normalises them for templates."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Annotated, Any, Final

import msgspec
from msgspec import Meta

from appliance.serving.body import MAX_PARTS, has_too_many_parts
from appliance.serving.errors import bad_request, missing
from appliance.serving.fields import Ignored, shown

# `developer` is OpenAI's newer name for `system`; templates know the older one.
ROLES: Final = {"system": "system", "developer": "system", "user": "user", "assistant": "assistant", "tool": "tool"}
FIELDS: Final = {
    "system": frozenset({"name"}),
    "user": frozenset({"name"}),
    "assistant": frozenset({"name", "reasoning_content", "reasoning", "refusal", "tool_calls", "function_call"}),
    "tool": frozenset({"name", "tool_call_id"}),
}
# Parts of a message. Those of /v1/responses are taken as well, as vLLM does.
TEXTS: Final = {"text": "text", "input_text": "text", "output_text": "text"}
REFUSAL: Final = {"refusal": "refusal"}
SWITCHES: Final = frozenset({"prefix"})
# Each takes a few tokens at least, so more would not fit any context; and checking each takes time.
MAX_MESSAGES: Final = 20_000
Messages = Annotated[list[dict[str, Any]], Meta(extra_json_schema={"minItems": 1, "maxItems": MAX_MESSAGES})]
"""Of a request; the document's limits are checked by `check_messages`."""
OLD_CALLS: Final = "tool_calls and the role tool have replaced function calls"
SHORT_ID: Final = re.compile(r"[a-zA-Z0-9]{9}")


def check_messages(
    messages: Sequence[dict[str, Any]], ignored: Ignored, fields: Mapping[str, frozenset[str]] | None = None
) -> list[dict[str, Any]]:
    """`fields`: those that the model knows beside OpenAI's, by role; of roles beside OpenAI's, too. Raises ApiError
    naming the message and its field."""
    if not messages:
        raise bad_request("messages is empty; send at least one message.", "messages")
    check_count(messages)
    conversation = _Conversation(ignored, fields or {})
    return [conversation.check(message, f"messages[{index}]") for index, message in enumerate(messages)]


def check_count(messages: Sequence[dict[str, Any]]) -> None:
    """Raises ApiError for too many."""
    if len(messages) > MAX_MESSAGES:
        many = f"messages: {len(messages):,} messages are too many; send {MAX_MESSAGES:,} or fewer."
        raise bad_request(f"{many} Remove the oldest, or join some.", "messages")


def with_short_ids(messages: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """The messages with ids of nine letters and digits in the place of other ones."""
    return [_with_short_ids(message) for message in messages]


def _with_short_ids(message: dict[str, Any]) -> dict[str, Any]:
    if "tool_call_id" in message:
        return {**message, "tool_call_id": _short_id(message["tool_call_id"])}
    if "tool_calls" in message:
        return {**message, "tool_calls": [{**call, "id": _short_id(call["id"])} for call in message["tool_calls"]]}
    return message


def _short_id(call_id: str) -> str:
    return call_id if SHORT_ID.fullmatch(call_id) else hashlib.sha256(call_id.encode()).hexdigest()[:9]


class _Conversation:
    """Messages in their order: a tool's result belongs to a call before it."""

    def __init__(self, ignored: Ignored, fields: Mapping[str, frozenset[str]]) -> None:
        self._ignored = ignored
        self._roles = {**ROLES, **{role: role for role in fields if role not in ROLES}}
        self._fields = {**FIELDS, **{role: FIELDS.get(role, frozenset()) | more for role, more in fields.items()}}
        self._open: dict[str, str] = {}  # the calls without a result: id, name
        self._answered: set[str] = set()

    def check(self, message: dict[str, Any], param: str) -> dict[str, Any]:
        role = message.get("role")
        if role is None:
            raise missing(f"{param}.role")
        if not isinstance(role, str) or role not in self._roles:
            known = " or ".join((", ".join(list(self._roles)[:-1]), list(self._roles)[-1]))
            why = f" ({OLD_CALLS})" if role == "function" else ""
            raise bad_request(f"{param}.role: {shown(role)} is not supported{why}; use {known}.", f"{param}.role")
        role = self._roles[role]
        given = self._given(message, role, param)
        content = message.get("content")
        match role:
            case "assistant":
                return {"role": "assistant", **self._assistant(message, given, param)}
            case "tool":
                return {"role": "tool", "content": _text(content, f"{param}.content"), **self._result(given, param)}
            case plain:
                return {"role": plain, "content": _text(content, f"{param}.content"), **given}

    def _given(self, message: dict[str, Any], role: str, param: str) -> dict[str, Any]:
        """The other fields, of the right type."""
        given: dict[str, Any] = {}
        for field, value in message.items():
            # Clients send answers back as they got them, with empty fields.
            if field in ("role", "content") or value is None or value == []:
                continue
            place = f"{param}.{field}"
            if field not in self._fields[role]:
                self._ignored.add(f"messages[].{field}", place)
            elif field == "function_call":
                raise bad_request(f"{place} is not supported: {OLD_CALLS}.", place, "unsupported_field")
            elif field == "tool_calls":
                given[field] = self._calls(value, place)
            elif isinstance(value, bool if field in SWITCHES else str):
                given[field] = value
            else:
                use = "true or false" if field in SWITCHES else "a string"
                raise bad_request(f"{place}: {shown(value)} is not valid; use {use}.", place)
        return given

    @staticmethod
    def _assistant(message: dict[str, Any], given: dict[str, Any], param: str) -> dict[str, Any]:
        """A message may consist of calls, of reasoning or of a refusal alone; or of nothing, and say so."""
        content = message.get("content")
        refusal = given.pop("refusal", "")
        reasoning = given.pop("reasoning", "")
        if reasoning:
            given.setdefault("reasoning_content", reasoning)
        if content is None and (given.keys() - {"name"} or refusal or "content" in message):
            return {"content": refusal, **given}
        return {"content": _text(content, f"{param}.content", {**TEXTS, **REFUSAL}), **given}

    def _calls(self, calls: Any, param: str) -> list[dict[str, Any]]:
        if not isinstance(calls, list):
            raise bad_request(f"{param}: {shown(calls)} is not valid; use a list of calls.", param)
        checked: dict[str, dict[str, Any]] = {}
        for index, given in enumerate(calls):
            call = self._call(given, f"{param}[{index}]")
            if call["id"] in checked:
                place = f"{param}[{index}].id"
                raise bad_request(f"{place}: {shown(call['id'])} is the id of two calls; give each its own.", place)
            checked[call["id"]] = call
        return list(checked.values())

    def _call(self, call: Any, param: str) -> dict[str, Any]:
        if not isinstance(call, dict):
            raise bad_request(f"{param}: {shown(call)} is not valid; use an object with id, type and function.", param)
        call_id, kind, function = call.get("id"), call.get("type", "function"), call.get("function")
        if call_id is None:
            raise missing(f"{param}.id")
        if not isinstance(call_id, str) or not call_id:
            raise bad_request(f"{param}.id: {shown(call_id)} is not valid; use a string.", f"{param}.id")
        if kind != "function":
            message = f'{param}.type: {shown(kind)} is not supported; use "function".'
            raise bad_request(message, f"{param}.type", "unsupported_content")
        place = f"{param}.function"
        if function is None:
            raise missing(place)
        if not isinstance(function, dict):
            raise bad_request(f"{place}: {shown(function)} is not valid; use an object with name and arguments.", place)
        name, arguments = function.get("name"), function.get("arguments")
        if name is None:
            raise missing(f"{place}.name")
        if not isinstance(name, str) or not name:
            raise bad_request(f"{place}.name: {shown(name)} is not valid; use a string.", f"{place}.name")
        self._open[call_id] = name
        self._answered.discard(call_id)
        checked = {"name": name, "arguments": _arguments(arguments, f"{place}.arguments")}
        return {"id": call_id, "type": "function", "function": checked}

    def _result(self, given: dict[str, Any], param: str) -> dict[str, Any]:
        place = f"{param}.tool_call_id"
        if "tool_call_id" not in given:
            raise missing(place)
        call_id = given["tool_call_id"]
        if call_id in self._answered:
            raise bad_request(
                f"{place}: the call {shown(call_id)} already has a result; send one for each call.", place
            )
        if call_id not in self._open:
            message = f"{place}: no tool call before this message has the id {shown(call_id)}; send the call, too."
            raise bad_request(message, place)
        self._answered.add(call_id)
        return {"name": self._open.pop(call_id), **given}


def _arguments(arguments: Any, param: str) -> Any:
    """An object, as templates iterate over it, where the text is that of one; models may have written anything."""
    if arguments is None or arguments == "":
        return {}
    if isinstance(arguments, dict):
        return arguments
    if not isinstance(arguments, str):
        message = f"{param}: {shown(arguments)} is not valid; use the text of a JSON object."
        raise bad_request(message, param)
    try:
        text = arguments.encode()
        if has_too_many_parts(text):
            raise bad_request(f"{param}: more than {MAX_PARTS:,} lists, objects and members; send fewer.", param)
        decoded = msgspec.json.decode(text)
    except (msgspec.DecodeError, RecursionError, UnicodeError):
        return arguments
    return decoded if isinstance(decoded, dict) else arguments


def _text(content: Any, param: str, kinds: Mapping[str, str] = TEXTS) -> str:
    """`kinds`: what has the text of a part, by its type."""
    if isinstance(content, str):
        return content
    if content is None:
        raise missing(param)
    if not isinstance(content, list):
        raise bad_request(f"{param}: {shown(content)} is not valid; use a string or a list of text parts.", param)
    texts = []
    for index, part in enumerate(content):
        place = f"{param}[{index}]"
        if not isinstance(part, dict):
            raise bad_request(f"{place}: {shown(part)} is not valid; use an object with type and text.", place)
        kind = part.get("type")
        if kind is None:
            raise missing(f"{place}.type")
        if not isinstance(kind, str) or kind not in kinds:
            message = f'{place}.type: {shown(kind)} is not supported; use "text", as the engine takes text only.'
            raise bad_request(message, f"{place}.type", "unsupported_content")
        field = kinds[kind]
        text = part.get(field)
        if text is None:
            raise missing(f"{place}.{field}")
        if not isinstance(text, str):
            raise bad_request(f"{place}.{field}: {shown(text)} is not valid; use a string.", f"{place}.{field}")
        texts.append(text)
    return "".join(texts)
