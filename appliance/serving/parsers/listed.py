"""Calls that a grammar enforces: a JSON array of `{"name": ..., "arguments": {...}}`, whatever the model's own format
is."""

from __future__ import annotations

from collections.abc import Sequence

from appliance.serving.parsers.base import Tool
from appliance.serving.parsers.calls import Format
from appliance.serving.parsers.json_calls import JsonCallParser
from appliance.serving.parsers.reader import Steps


class ListedCallParser(JsonCallParser):
    def __init__(self, tools: Sequence[Tool]) -> None:
        super().__init__(tools, {"[": ""})

    def call(self, marker: str) -> Steps[None]:
        yield from self.array()


LISTED = Format("listed", ListedCallParser)
