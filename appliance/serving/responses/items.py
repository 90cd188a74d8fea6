"""The items of an input, checked and in one form: as they are kept, listed, and made into messages."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Sequence
from typing import Any, Final

from appliance.serving.errors import ApiError, bad_request, missing
from appliance.serving.fields import Ignored, shown

Item = dict[str, Any]

MAX_ITEMS: Final = 20_000
# The known fields of each type, also of those that clients add to what they send back.
FIELDS: Final = {
    "message": frozenset({"id", "type", "role", "content", "status", "phase"}),
    "function_call": frozenset({"id", "type", "call_id", "name", "arguments", "status", "parsed_arguments"}),
    "function_call_output": frozenset({"id", "type", "call_id", "output", "status"}),
    "reasoning": frozenset({"id", "type", "summary", "content", "encrypted_content", "status"}),
    "item_reference": frozenset({"id", "type"}),
}
PREFIXES: Final = {"message": "msg", "function_call": "fc", "function_call_output": "fco", "reasoning": "rs"}
ROLES: Final = ("user", "assistant", "system", "developer")
TEXTS: Final = ("input_text", "output_text", "text")


def new_item_id(kind: str) -> str:
    return f"{PREFIXES[kind]}_{secrets.token_hex(24)}"


def output_text(text: str) -> dict[str, Any]:
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": []}


def check_items(
    given: str | list[Any], history: Sequence[Item], find: Callable[[str, str], Item], ignored: Ignored
) -> list[Item]:
    """The items of `input`, which follow `history`. `find` returns the item of an id that stands at a path;
    it and this raise ApiError."""
    if isinstance(given, str):
        given = [{"role": "user", "content": given}]
    if not given and not history:
        raise bad_request("input is empty; send at least one item.", "input")
    if len(history) + len(given) > MAX_ITEMS:
        many = f"input: {len(history) + len(given):,} items are too many; send {MAX_ITEMS:,} or fewer."
        raise bad_request(many, "input")
    checker = _Checker(history, find, ignored)
    return [checker.check(item, f"input[{index}]") for index, item in enumerate(given)]


class _Checker:
    """Items in their order: an output belongs to a call before it."""

    def __init__(self, history: Sequence[Item], find: Callable[[str, str], Item], ignored: Ignored) -> None:
        self._find = find
        self._ignored = ignored
        self._answered: dict[str, bool] = {}  # by the id of the call
        for item in history:
            self._follow(item, "previous_response_id")

    def check(self, item: Any, param: str) -> Item:
        if not isinstance(item, dict):
            raise bad_request(f"{param}: {shown(item)} is not valid; use an object with a type.", param)
        kind = item.get("type") or ("message" if "role" in item else None)
        if kind is None:
            raise missing(f"{param}.type")
        if not isinstance(kind, str) or kind not in FIELDS:
            message = f"{param}.type: {shown(kind)} is not supported; use {' or '.join(FIELDS)}."
            raise bad_request(message, f"{param}.type", "unsupported_content")
        for field, value in item.items():
            if field not in FIELDS[kind] and value is not None:
                self._ignored.add(f"input[].{field}", f"{param}.{field}")
        checked = self._checked(kind, item, param)
        self._follow(checked, param)
        return checked

    def _checked(self, kind: str, item: dict[str, Any], param: str) -> Item:
        if kind == "item_reference":
            return self._find(_string(item, "id", param), f"{param}.id")
        item_id = _string(item, "id", param) if item.get("id") is not None else new_item_id(kind)
        head = {"id": item_id, "type": kind}
        match kind:
            case "message":
                return {**head, "status": "completed", **_message(item, param)}
            case "function_call":
                arguments = item.get("arguments")
                place = f"{param}.arguments"
                if arguments is None:
                    raise missing(place)
                if not isinstance(arguments, str):
                    raise bad_request(f"{place}: {shown(arguments)} is not valid; use the text of JSON.", place)
                called = {name: _string(item, name, param) for name in ("call_id", "name")}
                return {**head, "status": "completed", **called, "arguments": arguments}
            case "function_call_output":
                output = "".join(part["text"] for part in _parts(item.get("output"), "input_text", f"{param}.output"))
                call_id = _string(item, "call_id", param)
                return {**head, "status": "completed", "call_id": call_id, "output": output}
            case _:
                return {**head, **_reasoning(item, param)}

    def _follow(self, item: Item, param: str) -> None:
        place = f"{param}.call_id"
        match item["type"]:
            case "function_call":
                if self._answered.get(item["call_id"]) is False:
                    raise bad_request(f"{place}: {shown(item['call_id'])} is the id of two calls.", place)
                self._answered[item["call_id"]] = False
            case "function_call_output":
                self._check_output(item["call_id"], place)
                self._answered[item["call_id"]] = True

    def _check_output(self, call_id: str, place: str) -> None:
        answered = self._answered.get(call_id)
        if answered is None:
            raise bad_request(
                f"{place}: no function call before this item has the id {shown(call_id)}; send the call, too.", place
            )
        if answered:
            raise bad_request(f"{place}: the call {shown(call_id)} already has an output; send one for each.", place)


def _message(item: dict[str, Any], param: str) -> Item:
    role = item.get("role")
    place = f"{param}.role"
    if role is None:
        raise missing(place)
    if role not in ROLES:
        raise bad_request(f"{place}: {shown(role)} is not supported; use {' or '.join(ROLES)}.", place)
    kind = "output_text" if role == "assistant" else "input_text"
    return {"role": role, "content": _parts(item.get("content"), kind, f"{param}.content")}


def _reasoning(item: dict[str, Any], param: str) -> Item:
    """Of reasoning that was encrypted elsewhere, nothing is left."""
    written: Item = {"summary": []}
    for field, kind in (("content", "reasoning_text"), ("summary", "summary_text")):
        place = f"{param}.{field}"
        parts = item.get(field) or []
        if not isinstance(parts, list):
            raise bad_request(f"{place}: {shown(parts)} is not valid; use a list of parts.", place)
        written[field] = [
            {"type": kind, "text": _text_of(part, (kind,), f"{place}[{index}]")} for index, part in enumerate(parts)
        ]
    return written


def _parts(content: Any, kind: str, param: str) -> list[dict[str, Any]]:
    """As parts of one `kind`; a refusal is text, too."""
    if isinstance(content, str):
        return [_part(kind, content)]
    if content is None:
        raise missing(param)
    if not isinstance(content, list):
        raise bad_request(f"{param}: {shown(content)} is not valid; use a string or a list of text parts.", param)
    return [_part(kind, _text_of(part, (*TEXTS, "refusal"), f"{param}[{index}]")) for index, part in enumerate(content)]


def _part(kind: str, text: str) -> dict[str, Any]:
    return output_text(text) if kind == "output_text" else {"type": kind, "text": text}


def _text_of(part: Any, kinds: Sequence[str], param: str) -> str:
    if not isinstance(part, dict):
        raise bad_request(f"{param}: {shown(part)} is not valid; use an object with type and text.", param)
    kind = part.get("type")
    if kind is None:
        raise missing(f"{param}.type")
    if kind not in kinds:
        message = f"{param}.type: {shown(kind)} is not supported; use {kinds[0]}, as the engine takes text only."
        raise bad_request(message, f"{param}.type", "unsupported_content")
    field = "refusal" if kind == "refusal" else "text"
    if not isinstance(part.get(field), str):
        raise _not_a_string(part.get(field), f"{param}.{field}")
    return str(part[field])


def _string(item: dict[str, Any], field: str, param: str) -> str:
    value = item.get(field)
    if not isinstance(value, str) or not value:
        raise _not_a_string(value, f"{param}.{field}")
    return value


def _not_a_string(value: Any, param: str) -> ApiError:
    if value is None:
        return missing(param)
    return bad_request(f"{param}: {shown(value)} is not valid; use a string.", param)
