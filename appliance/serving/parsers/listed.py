"""Calls that a grammar enforces: a JSON array of `{"name": ..., "arguments": {...}}`, whatever the model's own format
is. Nothing of such an answer is content: where it is cut off, it has the calls whose names are known."""

from __future__ import annotations

from collections.abc import Sequence

from appliance.serving.parsers.base import Tool
from appliance.serving.parsers.calls import Format
from appliance.serving.parsers.json_calls import JsonCallParser
from appliance.serving.parsers.reader import Ended, Steps


class ListedCallParser(JsonCallParser):
    def __init__(self, tools: Sequence[Tool]) -> None:
        super().__init__(tools, {"[": ""})

    def call(self, marker: str) -> Steps[None]:
        try:
            yield from self.array()
        except Ended:
            self._keep_call()

    def _keep_call(self) -> None:
        """Of what was cut off; the first one can be of the only tool alone."""
        if self._named is None and self._count == 0 and len(self.tools) == 1:
            self.name(*self.tools)
        if self._named is not None:
            self.begin()
        self.commit()


LISTED = Format("listed", ListedCallParser)
