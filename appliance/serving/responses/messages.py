"""Items as the messages that templates know."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from appliance.serving.responses.items import Item

Message = dict[str, Any]


def chat_messages(instructions: str | None, items: Sequence[Item]) -> list[Message]:
    """Reasoning, text and calls that follow each other are one message of the assistant. What a system says at the
    beginning is one message, too: many templates allow no second one."""
    messages: list[Message] = [{"role": "system", "content": instructions}] if instructions else []
    for item in items:
        last = messages[-1] if messages else None
        match item["type"]:
            case "function_call_output":
                messages.append({"role": "tool", "tool_call_id": item["call_id"], "content": item["output"]})
            case "message" if item["role"] != "assistant":
                role = "user" if item["role"] == "user" else "system"
                if role == "system" and last is not None and len(messages) == 1 and last["role"] == "system":
                    last["content"] += f"\n\n{_text(item)}"
                else:
                    messages.append({"role": role, "content": _text(item)})
            case _:
                if last is None or last["role"] != "assistant" or _is_whole(last, item):
                    last = {"role": "assistant", "content": None}
                    messages.append(last)
                _add(last, item)
    return [message for message in messages if len(message) > 2 or message["content"] is not None]


def _is_whole(message: Message, item: Item) -> bool:
    """Whether `item` begins another message: it is no call, and the last part of the message is its text."""
    return item["type"] != "function_call" and message["content"] is not None and "tool_calls" not in message


def _add(message: Message, item: Item) -> None:
    match item["type"]:
        case "message":
            message["content"] = "\n".join(filter(None, (message["content"], _text(item))))
        case "function_call":
            function = {"name": item["name"], "arguments": item["arguments"]}
            message.setdefault("tool_calls", []).append({
                "id": item["call_id"], "type": "function", "function": function,
            })  # fmt: skip
        case "reasoning":
            if reasoning := "\n".join(part["text"] for part in item.get("content") or item["summary"]):
                message["reasoning_content"] = "\n".join(filter(None, (message.get("reasoning_content"), reasoning)))


def _text(item: Item) -> str:
    return "".join(part["text"] for part in item["content"])
