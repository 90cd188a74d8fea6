"""Llama 3 in JSON: `{"name": ..., "parameters": {...}}`, several joined by `;`, behind an optional `<|python_tag|>`.

Source: the chat templates of Llama 3.1 to 3.3, Meta's prompt format, and vLLM's tool_chat_template_llama4_json for
Llama 4, which says `<|python_start|>`. As an object in prose may be no call, one counts only if every member of it is
known; a call that is cut off counts from its arguments on.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from appliance.serving.parsers.base import Tool
from appliance.serving.parsers.calls import Format
from appliance.serving.parsers.json_calls import JsonCallParser
from appliance.serving.parsers.reader import Steps

_MEMBERS: Final = frozenset({"name", "parameters", "arguments", "type", "id"})


class Llama3JsonParser(JsonCallParser):
    marked = False

    def __init__(self, tools: Sequence[Tool]) -> None:
        super().__init__(tools, {"{": "", "<|python_tag|>": "", "<|python_start|>": "<|python_end|>"})

    def call(self, marker: str) -> Steps[None]:
        if marker != "{":
            yield from self.reader.skip_space()
            yield from self.reader.expect("{")
        yield from self.members(_MEMBERS)
        yield from self.reader.skip_space()
        while (yield from self.reader.accept(";")):
            yield from self.reader.skip_space()
            yield from self.reader.accept("<|python_tag|>")
            yield from self.reader.expect("{")
            yield from self.members(_MEMBERS)
            yield from self.reader.skip_space()
        if (end := self.ends[marker]) and (yield from self.reader.accept(end)):
            self.commit()


LLAMA3_JSON = Format("llama3-json", Llama3JsonParser, keeps_special=True)
