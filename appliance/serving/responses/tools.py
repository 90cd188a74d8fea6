"""Tools and their choice: from the form of the Responses API to that of chat."""

from __future__ import annotations

from typing import Any, Final

from appliance.serving.errors import bad_request, missing
from appliance.serving.fields import Ignored, shown

FIELDS: Final = ("name", "description", "parameters", "strict")


def chat_tools(tools: list[Any], ignored: Ignored) -> list[Any]:
    """The functions. What would run elsewhere (a search, an MCP server) is left out and noted, since agents send such
    tools whether or not they need them; where requests are to be strict, ApiError."""
    functions = []
    for index, tool in enumerate(tools):
        if is_hosted(tool) and not ignored.strict:
            ignored.add_unused(f"tools[{index}]")
        else:
            functions.append(_chat_tool(tool, f"tools[{index}]", ignored))
    return functions


def is_hosted(tool: Any) -> bool:
    return isinstance(tool, dict) and isinstance(tool.get("type"), str) and tool["type"] != "function"


def _chat_tool(tool: Any, param: str, ignored: Ignored) -> dict[str, Any]:
    if not isinstance(tool, dict):
        raise bad_request(f"{param}: {shown(tool)} is not valid; use an object with type and name.", param)
    if tool.get("type") is None:
        raise missing(f"{param}.type")
    if tool["type"] != "function":
        why = "the engine runs no tools itself"
        message = f'{param}.type: {shown(tool["type"])} is not supported: {why}. Remove it, or use "function".'
        raise bad_request(message, f"{param}.type", "unsupported_field")
    for field, value in tool.items():
        if field not in (*FIELDS, "type") and value is not None:
            ignored.add(f"tools[].{field}", f"{param}.{field}")
    return {"type": "function", "function": {field: tool.get(field) for field in FIELDS}}


def chat_tool_choice(choice: Any) -> Any:
    """What chat has the same name for is left as it is."""
    if choice is None or isinstance(choice, str):
        return choice
    match choice:
        case {"type": "function", "name": str() as name}:
            return _named(name)
        case {"type": "allowed_tools", "tools": list() as tools}:
            named = [_named(tool.get("name") if isinstance(tool, dict) else tool) for tool in tools]
            return {"type": "allowed_tools", "allowed_tools": {"mode": choice.get("mode"), "tools": named}}
    known = '"auto", "none", "required", {"type": "function", "name": ...} or {"type": "allowed_tools", ...}'
    raise bad_request(f"tool_choice: {shown(choice)} is not valid; use {known}.", "tool_choice")


def _named(name: Any) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name}}
