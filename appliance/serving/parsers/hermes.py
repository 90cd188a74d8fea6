"""Hermes: `<tool_call>{"name": ..., "arguments": {...}}</tool_call>`, one for each call.

Source: the chat templates of Qwen2.5, Qwen3, Hermes 2 Pro and 3, and Granite 4. Some tokenizers have
the markers as special tokens. An array of calls in one pair of markers, which some fine-tunes write, is read too.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from appliance.serving.parsers.base import Tool
from appliance.serving.parsers.calls import Format
from appliance.serving.parsers.json_calls import JsonCallParser
from appliance.serving.parsers.shapes import between

_ENDS: Final = {"<tool_call>": "</tool_call>"}


class HermesParser(JsonCallParser):
    def __init__(self, tools: Sequence[Tool]) -> None:
        super().__init__(tools, _ENDS)


HERMES = Format("hermes", HermesParser, keeps_special=True, shapes=between(_ENDS))
