"""Checks the messages of a chat and normalises them for templates."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from appliance.serving.errors import bad_request
from appliance.serving.fields import shown

# `developer` is OpenAI's newer name for `system`; templates know the older one.
ROLES: dict[str, str] = {"system": "system", "developer": "system", "user": "user", "assistant": "assistant"}
TEXT_FIELDS = ("name", "reasoning_content")
# Each takes a few tokens at least, so more would not fit any context; and checking each takes time.
MAX_MESSAGES = 20_000


def check_messages(messages: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Raises ApiError naming the message and its field."""
    if not messages:
        raise bad_request("messages is empty; send at least one message.", "messages")
    if len(messages) > MAX_MESSAGES:
        many = f"messages: {len(messages):,} messages are too many; send {MAX_MESSAGES:,} or fewer."
        raise bad_request(f"{many} Remove the oldest, or join some.", "messages")
    return [_check(message, f"messages[{index}]") for index, message in enumerate(messages)]


def _check(message: dict[str, Any], param: str) -> dict[str, Any]:
    role = message.get("role")
    if not isinstance(role, str) or role not in ROLES:
        known = " or ".join((", ".join(list(ROLES)[:-1]), list(ROLES)[-1]))
        why = " (tool calls are not implemented)" if role in ("tool", "function") else ""
        raise bad_request(f"{param}.role: {shown(role)} is not supported{why}; use {known}.", f"{param}.role")
    checked = {"role": ROLES[role], "content": _text(message.get("content"), f"{param}.content")}
    for field, value in message.items():
        # Clients send answers back as they got them, with empty fields.
        if field in ("role", "content") or value is None or value == []:
            continue
        if field not in TEXT_FIELDS:
            raise bad_request(f"{param}.{field} is not supported. Remove it.", f"{param}.{field}", "unsupported_field")
        if not isinstance(value, str):
            raise bad_request(f"{param}.{field}: {shown(value)} is not valid; use a string.", f"{param}.{field}")
        checked[field] = value
    return checked


def _text(content: Any, param: str) -> str:
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        raise bad_request(f"{param}: {shown(content)} is not valid; use a string or a list of text parts.", param)
    texts = []
    for index, part in enumerate(content):
        place = f"{param}[{index}]"
        if not isinstance(part, dict):
            raise bad_request(f"{place}: {shown(part)} is not valid; use an object with type and text.", place)
        kind, text = part.get("type"), part.get("text")
        if kind != "text":
            message = f'{place}.type: {shown(kind)} is not supported; use "text", as the engine takes text only.'
            raise bad_request(message, f"{place}.type", "unsupported_content")
        if not isinstance(text, str):
            raise bad_request(f"{place}.text: {shown(text)} is not valid; use a string.", f"{place}.text")
        texts.append(text)
    return "".join(texts)
