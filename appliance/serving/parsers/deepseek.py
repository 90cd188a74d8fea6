"""DeepSeek V3 to V3.1: calls between `<｜tool▁calls▁begin｜>` and `<｜tool▁calls▁end｜>`, each in its own markers.

V3 and R1: `<｜tool▁call▁begin｜>function<｜tool▁sep｜>NAME`, and the arguments in a fenced block of JSON. V3.1 and
V3.2-Exp: `<｜tool▁call▁begin｜>NAME<｜tool▁sep｜>{...}`. Source: their chat templates. One parser reads both, as the
fence tells them apart. The outer markers, and those that end a call, may be missing, as models leave them out at times.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Final

from appliance.checkpoint.call_grammar import SPACE, OneOf, Piece, Repeated, optional
from appliance.serving.parsers.base import Tool
from appliance.serving.parsers.calls import Format
from appliance.serving.parsers.json_calls import JsonCallParser
from appliance.serving.parsers.reader import Steps
from appliance.serving.parsers.shapes import MOST, arguments

BEGIN: Final = "<｜tool▁calls▁begin｜>"
_END: Final = "<｜tool▁calls▁end｜>"
_CALL, _CALL_END, _SEPARATOR = "<｜tool▁call▁begin｜>", "<｜tool▁call▁end｜>", "<｜tool▁sep｜>"
_FENCE: Final = "```"
_NAME: Final = re.compile(r"[^\s<>`{]*")


class DeepSeekParser(JsonCallParser):
    def __init__(self, tools: Sequence[Tool]) -> None:
        super().__init__(tools, {BEGIN: "", _CALL: ""})

    def call(self, marker: str) -> Steps[None]:
        reader = self.reader
        if marker == BEGIN:
            yield from reader.skip_space()
            yield from reader.expect(_CALL)
        while True:
            yield from self._one_call()
            yield from reader.skip_space()
            follows = yield from reader.accept(_CALL, _END)
            if follows != _CALL:
                break
        if follows:
            self.commit()

    def _one_call(self) -> Steps[None]:
        reader = self.reader
        name = yield from reader.read_while(_NAME)
        yield from reader.expect(_SEPARATOR)
        yield from reader.skip_space()
        fenced = ""
        if (yield from reader.peek()) != "{":
            name = yield from reader.read_while(_NAME)
            yield from reader.skip_space()
            fenced = yield from reader.expect(f"{_FENCE}json")
            yield from reader.skip_space()
        self.name(name)
        yield from self.object_arguments()
        yield from reader.skip_space()
        if fenced and (yield from reader.accept(_FENCE)):
            yield from reader.skip_space()
        if (yield from reader.accept(_CALL_END)):
            self.commit()


def _shapes(tools: Sequence[Tool]) -> Mapping[str, Piece]:
    calls: list[Piece] = []
    for tool in tools:
        fenced = (f"{_FENCE}json", SPACE, arguments(tool), SPACE, _FENCE)
        calls.append(("function", _SEPARATOR, tool.name, SPACE, *fenced, SPACE, _CALL_END))
        calls.append((tool.name, _SEPARATOR, SPACE, arguments(tool), SPACE, _CALL_END))
    call = OneOf(calls)
    more = (Repeated((SPACE, _CALL, call), 0, MOST - 1), optional((SPACE, _END)))
    return {BEGIN: (SPACE, _CALL, call, *more), _CALL: (call, *more)}


DEEPSEEK_V3 = Format("deepseek-v3", DeepSeekParser, keeps_special=True, shapes=_shapes)
DEEPSEEK_V31 = Format("deepseek-v3.1", DeepSeekParser, keeps_special=True, shapes=_shapes)
