"""What DeepSeek V3.2 and V4 write alike: their special tokens, and calls in DSML.

Source: encoding_dsv32.py and encoding_dsv4.py in the models' repositories. The bars in the tokens are U+FF5C, the low
lines U+2581.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

BOS: Final = "<｜begin▁of▁sentence｜>"
EOS: Final = "<｜end▁of▁sentence｜>"
USER: Final = "<｜User｜>"
ASSISTANT: Final = "<｜Assistant｜>"
THINK: Final = "<think>"
THINK_END: Final = "</think>"
_RESPONSE_FORMAT: Final = "## Response Format:\n\nYou MUST strictly adhere to the following schema to reply:\n"


def to_json(value: Any) -> str:
    """As the models have seen it: spaces behind commas and colons, and no escapes for letters beyond ASCII."""
    return json.dumps(value, ensure_ascii=False)


def tool_schemas(tools: Iterable[Mapping[str, Any]]) -> str:
    """The functions of tools in OpenAI's form, one a line."""
    return "\n".join(to_json(tool["function"]) for tool in tools)


def response_format(schema: Any) -> str:
    return _RESPONSE_FORMAT + to_json(schema)


def calls(tool_calls: Sequence[Mapping[str, Any]], around: str) -> str:
    """Calls in OpenAI's form, in the element `around`."""
    invokes = "\n".join(_invoke(call["function"]) for call in tool_calls)
    return f"<｜DSML｜{around}>\n{invokes}\n</｜DSML｜{around}>"


def _invoke(function: Mapping[str, Any]) -> str:
    parameters = "\n".join(_parameter(key, value) for key, value in _members(function["arguments"]).items())
    return f'<｜DSML｜invoke name="{function["name"]}">\n{parameters}\n</｜DSML｜invoke>'


def _parameter(key: str, value: Any) -> str:
    """Texts stand as they are, and nothing in them is escaped; all else is JSON."""
    is_text = isinstance(value, str)
    written = value if is_text else to_json(value)
    return f'<｜DSML｜parameter name="{key}" string="{"true" if is_text else "false"}">{written}</｜DSML｜parameter>'


def _members(arguments: Any) -> Mapping[str, Any]:
    """Arguments as an object or its JSON text. What is none, as models may have written it, is one parameter."""
    value = arguments
    if isinstance(arguments, str):
        try:
            value = json.loads(arguments)
        except (ValueError, RecursionError):
            value = None
    return value if isinstance(value, dict) else {"arguments": arguments}
