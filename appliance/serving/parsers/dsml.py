"""DSML, the markup of DeepSeek V3.2 and V4.

Around all is `<｜DSML｜function_calls>` (V3.2) or `<｜DSML｜tool_calls>` (V4), around each call
`<｜DSML｜invoke name="NAME">`. A parameter is `<｜DSML｜parameter name="KEY" string="true">text</｜DSML｜parameter>`;
with `string="false"` it is JSON.

Source: encoding_dsv32.py and encoding_dsv4.py in the models' repositories. Models also write `toolcalls` and `tool`
around the calls, and leave out `string=`: then the tool's schema says what the value is.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from appliance.serving.parsers.base import Tool
from appliance.serving.parsers.calls import Format
from appliance.serving.parsers.tags import TagParser, Tags

_AROUND: Final = ("function_calls>", "tool_calls>", "toolcalls>", "tool>")
_CALL: Final = "<｜DSML｜invoke name="
_WRAPPERS: Final = tuple(f"<｜DSML｜{name}" for name in _AROUND)
MARKERS: Final = (*_WRAPPERS, _CALL)
_TAGS: Final = Tags(
    around=_WRAPPERS,
    around_end=tuple(f"</｜DSML｜{name}" for name in _AROUND),
    call=_CALL,
    call_end="</｜DSML｜invoke>",
    parameter="<｜DSML｜parameter name=",
    parameter_end="</｜DSML｜parameter>",
    quoted=True,
    says_kind=True,
)


class DsmlParser(TagParser):
    def __init__(self, tools: Sequence[Tool]) -> None:
        super().__init__(tools, _TAGS)


DSML = Format("dsml", DsmlParser, keeps_special=True, shapes=_TAGS.shapes)
