"""Kimi K2: calls between `<|tool_calls_section_begin|>` and `<|tool_calls_section_end|>`, each
`<|tool_call_begin|>functions.NAME:INDEX<|tool_call_argument_begin|>{...}<|tool_call_end|>`.

Source: its chat template and tool calling guide. What stands before the arguments is the call's id, which later turns
must repeat. The model also writes `tool_call_section`, and leaves out the section at times.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Final

from appliance.checkpoint.call_grammar import SPACE, OneOf, Pattern, Piece, Repeated, optional
from appliance.serving.parsers.base import Tool
from appliance.serving.parsers.calls import Format
from appliance.serving.parsers.json_calls import JsonCallParser
from appliance.serving.parsers.reader import Steps
from appliance.serving.parsers.shapes import MOST, arguments

SECTIONS: Final = ("<|tool_calls_section_begin|>", "<|tool_call_section_begin|>")
_SECTION_ENDS: Final = ("<|tool_calls_section_end|>", "<|tool_call_section_end|>")
_CALL, _ARGUMENTS, _CALL_END = "<|tool_call_begin|>", "<|tool_call_argument_begin|>", "<|tool_call_end|>"
_ID: Final = re.compile(r"[^\s<>{]*")
_INDEX: Final = re.compile(r":[0-9]+\Z")


class KimiK2Parser(JsonCallParser):
    def __init__(self, tools: Sequence[Tool]) -> None:
        super().__init__(tools, dict.fromkeys((*SECTIONS, _CALL), ""))

    def call(self, marker: str) -> Steps[None]:
        reader = self.reader
        if marker != _CALL:
            yield from reader.skip_space()
            yield from reader.expect(_CALL)
        while True:
            yield from self._one_call()
            yield from reader.skip_space()
            follows = yield from reader.accept(_CALL, *_SECTION_ENDS)
            if follows != _CALL:
                break
        if follows:
            self.commit()

    def _one_call(self) -> Steps[None]:
        reader = self.reader
        yield from reader.skip_space()
        call_id = yield from reader.read_while(_ID)
        yield from reader.skip_space()
        yield from reader.expect(_ARGUMENTS)
        self.name(_INDEX.sub("", call_id).removeprefix("functions."), call_id)
        yield from reader.skip_space()
        yield from self.object_arguments()
        yield from reader.skip_space()
        if (yield from reader.accept(_CALL_END)):
            self.commit()


def _shapes(tools: Sequence[Tool]) -> Mapping[str, Piece]:
    number = Pattern(":[0-9]{1,4}")
    named = [
        (f"functions.{tool.name}", number, SPACE, _ARGUMENTS, SPACE, arguments(tool), SPACE, _CALL_END)
        for tool in tools
    ]
    call = (SPACE, OneOf(named))
    more = (Repeated((SPACE, _CALL, call), 0, MOST - 1), optional((SPACE, OneOf(_SECTION_ENDS))))
    return {**dict.fromkeys(SECTIONS, (SPACE, _CALL, call, *more)), _CALL: (call, *more)}


KIMI_K2 = Format("kimi-k2", KimiK2Parser, keeps_special=True, shapes=_shapes)
