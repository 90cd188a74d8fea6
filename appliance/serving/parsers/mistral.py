"""Mistral: `[TOOL_CALLS][{"name": ..., "arguments": {...}, "id": ...}]`, and `[TOOL_CALLS]name[ARGS]{...}` since the
tokenizer's version 11, where each call has its own marker, and may have `[CALL_ID]...` or no `[ARGS]`.

Source: mistral-common's tokenizers v3 to v13, the chat templates of Mistral 7B v0.3, Nemo, Small 3 and Devstral, and
vLLM's mistral parser. An id in an array comes behind the arguments, too late to be of use.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Final

from appliance.checkpoint.call_grammar import SPACE, OneOf, Pattern, Piece, optional
from appliance.serving.parsers.base import Tool
from appliance.serving.parsers.calls import Format
from appliance.serving.parsers.json_calls import JsonCallParser
from appliance.serving.parsers.reader import Steps
from appliance.serving.parsers.shapes import arguments, calls_in_json

_NAME: Final = re.compile(r"[A-Za-z0-9_.:/-]*")


class MistralParser(JsonCallParser):
    def __init__(self, tools: Sequence[Tool]) -> None:
        super().__init__(tools, {"[TOOL_CALLS]": ""})

    def call(self, marker: str) -> Steps[None]:
        reader = self.reader
        if (yield from reader.skip_space()) in ("[", "{"):
            yield from self.calls()
            return
        name = yield from reader.read_while(_NAME)
        call_id = ""
        yield from reader.skip_space()
        if (yield from reader.accept("[CALL_ID]")):
            call_id = yield from reader.read_while(_NAME)
        if (yield from reader.peek()) != "{":
            yield from reader.expect("[ARGS]")
        self.name(name, call_id)
        yield from reader.skip_space()
        yield from self.object_arguments()


def _shapes(tools: Sequence[Tool]) -> Mapping[str, Piece]:
    """The arguments come before the id, or behind the marker where there is one."""
    call_id = optional((SPACE, ",", SPACE, '"id"', SPACE, ":", SPACE, Pattern('"[A-Za-z0-9]{1,64}"')))
    call, items = calls_in_json(tools, call_id)
    said_id = optional(("[CALL_ID]", Pattern("[A-Za-z0-9]{1,64}")))
    named = [(tool.name, said_id, optional("[ARGS]"), SPACE, arguments(tool)) for tool in tools]
    return {"[TOOL_CALLS]": (SPACE, OneOf([("[", items), call, *named]))}


MISTRAL = Format("mistral", MistralParser, keeps_special=True, shapes=_shapes)
