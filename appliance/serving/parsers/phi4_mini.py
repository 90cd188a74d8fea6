"""Phi-4-mini: `functools[{"name": ..., "arguments": {...}}, ...]` or `<|tool_call|>[...]<|/tool_call|>`.

Source: its chat template and model card (`<|tool|>`), and vLLM's tool_chat_template_phi4_mini, which asks for
`functools`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from appliance.checkpoint.call_grammar import SPACE, Piece
from appliance.serving.parsers.base import Tool
from appliance.serving.parsers.calls import Format
from appliance.serving.parsers.json_calls import JsonCallParser
from appliance.serving.parsers.reader import Steps
from appliance.serving.parsers.shapes import calls_in_json


class Phi4MiniParser(JsonCallParser):
    def __init__(self, tools: Sequence[Tool]) -> None:
        super().__init__(tools, {"functools[": "", "<|tool_call|>": "<|/tool_call|>"})

    def call(self, marker: str) -> Steps[None]:
        if marker == "functools[":
            yield from self.array()
        else:
            yield from super().call(marker)


def _shapes(tools: Sequence[Tool]) -> Mapping[str, Piece]:
    _, items = calls_in_json(tools)
    return {"functools[": items, "<|tool_call|>": (SPACE, "[", items, SPACE, "<|/tool_call|>")}


PHI4_MINI = Format("phi-4-mini", Phi4MiniParser, keeps_special=True, shapes=_shapes)
