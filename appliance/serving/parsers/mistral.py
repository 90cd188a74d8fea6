"""Mistral: `[TOOL_CALLS][{"name": ..., "arguments": {...}, "id": ...}]`, and `[TOOL_CALLS]name[ARGS]{...}` since the
tokenizer's version 11, where each call has its own marker, and may have `[CALL_ID]...` or no `[ARGS]`.

Source: mistral-common's tokenizers v3 to v13, the chat templates of Mistral 7B v0.3, Nemo, Small 3 and Devstral, and
vLLM's mistral parser. An id in an array comes behind the arguments, too late to be of use.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

from appliance.serving.parsers.base import Tool
from appliance.serving.parsers.calls import Format
from appliance.serving.parsers.json_calls import JsonCallParser
from appliance.serving.parsers.reader import Steps

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


MISTRAL = Format("mistral", MistralParser, keeps_special=True)
