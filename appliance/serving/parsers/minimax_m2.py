"""MiniMax-M2: `<minimax:tool_call><invoke name="NAME"><parameter name="KEY">value</parameter></invoke>
</minimax:tool_call>`, with all calls in one outer tag.

Source: its chat template and the tool calling guide in its repository. Some tokenizers have the markers as
special tokens.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from appliance.serving.parsers.base import Tool
from appliance.serving.parsers.calls import Format
from appliance.serving.parsers.tags import TagParser, Tags

MARKERS: Final = ("<minimax:tool_call>",)
_TAGS: Final = Tags(
    around=MARKERS,
    around_end=("</minimax:tool_call>",),
    call="<invoke name=",
    call_end="</invoke>",
    parameter="<parameter name=",
    parameter_end="</parameter>",
    bare=False,
    quoted=True,
    strips_lines=True,
)


class MiniMaxM2Parser(TagParser):
    def __init__(self, tools: Sequence[Tool]) -> None:
        super().__init__(tools, _TAGS)


MINIMAX_M2 = Format("minimax-m2", MiniMaxM2Parser, keeps_special=True, shapes=_TAGS.shapes)
