"""Granite 3: `<|tool_call|>[{"name": ..., "arguments": {...}}, ...]`; 3.1 has `<tool_call>` there, and Granite 20B for
function calling `<function_call> {...}` for each call.

Source: the chat templates of Granite 3.0 to 3.3, vLLM's tool_chat_template_granite and its granite parsers. Granite 4
writes Hermes' format, and its template says so.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from appliance.serving.parsers.base import Tool
from appliance.serving.parsers.calls import Format
from appliance.serving.parsers.json_calls import JsonCallParser
from appliance.serving.parsers.shapes import between

_ENDS: Final = {"<|tool_call|>": "", "<tool_call>": "</tool_call>", "<function_call>": ""}


class GraniteParser(JsonCallParser):
    def __init__(self, tools: Sequence[Tool]) -> None:
        super().__init__(tools, _ENDS)


GRANITE = Format("granite", GraniteParser, keeps_special=True, shapes=between(_ENDS))
