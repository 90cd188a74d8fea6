"""Items as the messages that templates know."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from appliance.serving.responses.items import Item

Message = dict[str, Any]

# Between the texts of one message.
BETWEEN: Final = {"system": "\n\n"}


def chat_messages(instructions: str | None, items: Sequence[Item]) -> list[Message]:
    """Reasoning, text and calls that follow each other are one message of the assistant. What a system says at the
    beginning is one message, too: many templates allow no second one."""
    # Content and reasoning are lists of texts until all items have been read; no texts stand for no content.
    messages: list[Message] = [{"role": "system", "content": [instructions]}] if instructions else []
    for item in items:
        last = messages[-1] if messages else None
        match item["type"]:
            case "function_call_output":
                messages.append({"role": "tool", "tool_call_id": item["call_id"], "content": [item["output"]]})
            case "message" if item["role"] != "assistant":
                role = "user" if item["role"] == "user" else "system"
                if role == "system" and last is not None and len(messages) == 1 and last["role"] == "system":
                    last["content"].append(_text(item))
                else:
                    messages.append({"role": role, "content": [_text(item)]})
            case _:
                if last is None or last["role"] != "assistant" or _is_whole(last, item):
                    last = {"role": "assistant", "content": []}
                    messages.append(last)
                _add(last, item)
    return [_joined(message) for message in messages if len(message) > 2 or message["content"]]


def _is_whole(message: Message, item: Item) -> bool:
    """Whether `item` begins another message: it is no call, and the last part of the message is its text."""
    return item["type"] != "function_call" and bool(message["content"]) and "tool_calls" not in message


def _add(message: Message, item: Item) -> None:
    match item["type"]:
        case "message":
            message["content"].append(_text(item))
        case "function_call":
            function = {"name": item["name"], "arguments": item["arguments"]}
            message.setdefault("tool_calls", []).append({
                "id": item["call_id"], "type": "function", "function": function,
            })  # fmt: skip
        case "reasoning":
            if reasoning := "\n".join(part["text"] for part in item.get("content") or item["summary"]):
                message.setdefault("reasoning_content", []).append(reasoning)


def _joined(message: Message) -> Message:
    texts = message["content"]
    between = BETWEEN.get(message["role"], "\n")
    joined = {**message, "content": between.join(text for text in texts if text) if texts else None}
    if "reasoning_content" in message:
        joined["reasoning_content"] = "\n".join(message["reasoning_content"])
    return joined


def _text(item: Item) -> str:
    return "".join(part["text"] for part in item["content"])
