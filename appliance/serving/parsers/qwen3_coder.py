"""Qwen3-Coder and Qwen3.5: `<tool_call><function=NAME><parameter=KEY>value</parameter></function></tool_call>`, with a
line for each tag and value.

Source: the chat templates of Qwen3-Coder, Qwen3.5 and Nemotron 3, and vLLM's tool_chat_template_qwen3coder. Models
leave out the first tag, or `</function>`, at times. Some tokenizers have the markers as special tokens.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from appliance.serving.parsers.base import Tool
from appliance.serving.parsers.calls import Format
from appliance.serving.parsers.tags import TagParser, Tags

_TAGS: Final = Tags(
    around=("<tool_call>",),
    around_end=("</tool_call>",),
    call="<function=",
    call_end="</function>",
    parameter="<parameter=",
    parameter_end="</parameter>",
    strips_lines=True,
)


class Qwen3CoderParser(TagParser):
    def __init__(self, tools: Sequence[Tool]) -> None:
        super().__init__(tools, _TAGS)


QWEN3_CODER = Format("qwen3-coder", Qwen3CoderParser, keeps_special=True, shapes=_TAGS.shapes)
