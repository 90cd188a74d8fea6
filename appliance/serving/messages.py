"""Checks the messages of a chat, and brings them into the one form that templates expect."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from appliance.serving.errors import bad_request
from appliance.serving.fields import shown

# `developer` is OpenAI's newer name for `system`; templates know the older one.
ROLES: dict[str, str] = {"system": "system", "developer": "system", "user": "user", "assistant": "assistant"}
TEXT_FIELDS = ("name", "reasoning_content")
# Each takes a few tokens at least, so that many more fit into no context; and each takes time to look at.
MAX_MESSAGES = 20_000


def check_messages(messages: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Raises ApiError naming the message and its field."""
    if not messages:
        raise bad_request("The field 'messages' is empty: send at least one message.", "messages")
    if len(messages) > MAX_MESSAGES:
        many = f"The field 'messages' has {len(messages)} messages, and may have at most {MAX_MESSAGES}."
        raise bad_request(f"{many} Leave out the oldest, or join them.", "messages")
    return [_check(message, f"messages[{index}]") for index, message in enumerate(messages)]


def _check(message: dict[str, Any], param: str) -> dict[str, Any]:
    role = message.get("role")
    if not isinstance(role, str) or role not in ROLES:
        known = ", ".join(ROLES)
        why = " (this engine does not call tools)" if role in ("tool", "function") else ""
        raise bad_request(f"{param}.role must be one of {known}, and is {shown(role)}{why}.", f"{param}.role")
    checked = {"role": ROLES[role], "content": _text(message.get("content"), f"{param}.content")}
    for field, value in message.items():
        # Clients send back an answer as they got it: what was empty there asks for nothing.
        if field in ("role", "content") or value is None or value == []:
            continue
        if field not in TEXT_FIELDS:
            raise bad_request(f"{param}.{field} is not supported.", f"{param}.{field}", "unsupported_field")
        if not isinstance(value, str):
            raise bad_request(f"{param}.{field} must be a text, and is {shown(value)}.", f"{param}.{field}")
        checked[field] = value
    return checked


def _text(content: Any, param: str) -> str:
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        raise bad_request(f"{param} must be a text or a list of text parts, and is {shown(content)}.", param)
    texts = []
    for index, part in enumerate(content):
        place = f"{param}[{index}]"
        if not isinstance(part, dict):
            raise bad_request(f"{place} must be a part with 'type' and 'text', and is {shown(part)}.", place)
        kind, text = part.get("type"), part.get("text")
        if kind != "text":
            message = f"{place}.type must be 'text', and is {shown(kind)}: this engine takes text only."
            raise bad_request(message, f"{place}.type", "unsupported_content")
        if not isinstance(text, str):
            raise bad_request(f"{place}.text must be a text, and is {shown(text)}.", f"{place}.text")
        texts.append(text)
    return "".join(texts)
