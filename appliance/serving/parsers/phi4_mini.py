"""Phi-4-mini: `functools[{"name": ..., "arguments": {...}}, ...]` or `<|tool_call|>[...]<|/tool_call|>`.

Source: its chat template and model card (`<|tool|>`), and vLLM's tool_chat_template_phi4_mini, which asks for
`functools`.
"""

from __future__ import annotations

from collections.abc import Sequence

from appliance.serving.parsers.base import Tool
from appliance.serving.parsers.calls import Format
from appliance.serving.parsers.json_calls import JsonCallParser
from appliance.serving.parsers.reader import Steps


class Phi4MiniParser(JsonCallParser):
    def __init__(self, tools: Sequence[Tool]) -> None:
        super().__init__(tools, {"functools[": "", "<|tool_call|>": "<|/tool_call|>"})

    def call(self, marker: str) -> Steps[None]:
        if marker == "functools[":
            yield from self.array()
        else:
            yield from super().call(marker)


PHI4_MINI = Format("phi-4-mini", Phi4MiniParser, keeps_special=True)
