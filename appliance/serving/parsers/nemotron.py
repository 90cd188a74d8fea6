"""Nemotron Nano 2: `<TOOLCALL>[{"name": ..., "arguments": {...}}, ...]</TOOLCALL>`.

Source: its chat template. Nemotron 3 writes Qwen3-Coder's format, and its template says so.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from appliance.serving.parsers.base import Tool
from appliance.serving.parsers.calls import Format
from appliance.serving.parsers.json_calls import JsonCallParser
from appliance.serving.parsers.shapes import between

_ENDS: Final = {"<TOOLCALL>": "</TOOLCALL>"}


class NemotronParser(JsonCallParser):
    def __init__(self, tools: Sequence[Tool]) -> None:
        super().__init__(tools, _ENDS)


NEMOTRON = Format("nemotron", NemotronParser, keeps_special=True, shapes=between(_ENDS))
