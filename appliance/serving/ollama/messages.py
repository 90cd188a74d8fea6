"""Ollama's messages as those of /v1/chat/completions. Its calls have no ids of their own: a result names the tool."""

from __future__ import annotations

import itertools
from collections import defaultdict, deque
from typing import Any

from appliance.serving.errors import bad_request
from appliance.serving.fields import Ignored, decode_part, shown
from appliance.serving.messages import check_count
from appliance.serving.ollama.fields import Call, Function, Message


def translate_messages(messages: list[dict[str, Any]], ignored: Ignored) -> list[dict[str, Any]]:
    """Each becomes one, so that paths stay the same. Raises ApiError naming the field."""
    check_count(messages)
    conversation = _Conversation(ignored)
    return [conversation.translate(message, f"messages[{index}]") for index, message in enumerate(messages)]


class _Conversation:
    def __init__(self, ignored: Ignored) -> None:
        self._ignored = ignored
        self._call_ids: list[str] = []
        # By what a result may say of its call, an id, a name, both or neither: the indices of such calls, in order.
        self._waiting: defaultdict[tuple[str | None, str | None], deque[int]] = defaultdict(deque)
        self._answered: set[int] = set()

    def translate(self, given: dict[str, Any], param: str) -> dict[str, Any]:
        message = decode_part(given, Message, param, self._ignored)
        if message.images:
            place = f"{param}.images"
            raise bad_request(f"{place} is not supported: the engine takes text only.", place, "unsupported_content")
        translated = {"role": message.role, "content": "" if message.content is None else message.content}
        if message.thinking:
            translated["reasoning_content"] = message.thinking
        if message.tool_calls:
            translated["tool_calls"] = [
                self._call(call, f"{param}.tool_calls[{index}]") for index, call in enumerate(message.tool_calls)
            ]
        if message.role == "tool":
            translated["tool_call_id"] = self._answer(message, param)
        return translated

    def _call(self, given: dict[str, Any], param: str) -> dict[str, Any]:
        call = decode_part(given, Call, param, self._ignored)
        function = decode_part(call.function, Function, f"{param}.function", self._ignored)
        index = len(self._call_ids)
        call_id = call.id or f"call_{index + 1}"
        self._call_ids.append(call_id)
        for known_as in itertools.product((call_id, None), (function.name, None)):
            self._waiting[known_as].append(index)
        return {
            "id": call_id,
            "type": "function",
            "function": {"name": function.name, "arguments": function.arguments},
        }

    def _answer(self, message: Message, param: str) -> str:
        """The id of the call: the first without a result of those that it may belong to."""
        waiting = self._waiting.get((message.tool_call_id or None, message.tool_name or None), deque())
        while waiting:
            index = waiting.popleft()
            if index not in self._answered:
                self._answered.add(index)
                return self._call_ids[index]
        if message.tool_call_id is not None:
            place, wanted = f"{param}.tool_call_id", f"with the id {shown(message.tool_call_id)} "
        else:
            place, wanted = f"{param}.tool_name", f"of {shown(message.tool_name)} " if message.tool_name else ""
        raise bad_request(f"{place}: there is no call {wanted}without a result; send the call, too.", place)
