"""GLM-4.5 to 5: `<tool_call>NAME`, then `<arg_key>KEY</arg_key><arg_value>value</arg_value>` for each argument, and
`</tool_call>`; up to 4.6 each on its own line.

Source: the chat templates of GLM-4.5, 4.6, 4.7 and 5. Values that are not strings are written as JSON.
Some tokenizers have the markers as special tokens.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Final

from appliance.checkpoint.call_grammar import SPACE, OneOf, Piece
from appliance.serving.parsers.base import Tool
from appliance.serving.parsers.calls import Format
from appliance.serving.parsers.markers import markers
from appliance.serving.parsers.parameters import ParameterParser
from appliance.serving.parsers.reader import Malformed, Steps
from appliance.serving.parsers.shapes import ParameterTags, parameters

_NAME: Final = re.compile(r"[^<>{\"\s]*")
_TEXT: Final = re.compile(r"[^<>\n]*")
_KEY, _KEY_END, _VALUE, _VALUE_END, _END = "<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>", "</tool_call>"


class GlmParser(ParameterParser):
    markers = markers("<tool_call>")

    def call(self, marker: str) -> Steps[None]:
        reader = self.reader
        yield from reader.skip_space()
        name = yield from reader.read_while(_NAME)
        yield from reader.skip_space()
        follows = yield from reader.expect(_KEY, _END)
        self.begin_parameters(name)
        while follows == _KEY:
            key = (yield from reader.read_while(_TEXT)).strip()
            if not key:
                raise Malformed
            yield from reader.expect(_KEY_END)
            yield from reader.skip_space()
            yield from reader.expect(_VALUE)
            yield from self.parameter(key, _VALUE_END)
            yield from reader.skip_space()
            follows = yield from reader.expect(_KEY, _END)
        self.end_parameters()


def _opening(key: Piece, is_text: bool) -> Piece:
    return (_KEY, key, _KEY_END, SPACE, _VALUE)


def _shapes(tools: Sequence[Tool]) -> Mapping[str, Piece]:
    tags = ParameterTags(_opening, _VALUE_END)
    calls = OneOf([(tool.name, SPACE, parameters(tool, tags)) for tool in tools])
    return {"<tool_call>": (SPACE, calls, _END)}


GLM = Format("glm-4.5", GlmParser, keeps_special=True, shapes=_shapes)
