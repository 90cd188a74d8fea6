"""An answer without calls: all of it is content."""

from __future__ import annotations

from appliance.serving.parsers.base import Delta


class PlainParser:
    def push(self, text: str) -> Delta:
        return Delta(content=text)

    def finish(self) -> Delta:
        return Delta()
