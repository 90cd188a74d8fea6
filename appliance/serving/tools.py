"""The tools of a request, checked: as templates show them to the model, and as parsers read its calls."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from typing import Any, Final

import msgspec
from msgspec import structs

from appliance.checkpoint.call_grammar import OneOf, Piece
from appliance.serving.errors import ApiError, bad_request, missing
from appliance.serving.fields import Ignored, shown
from appliance.serving.parsers.base import Tool
from appliance.serving.parsers.shapes import call_object, listed, schema_of_arguments

NAME: Final = re.compile(r"[a-zA-Z0-9_.-]{1,64}")
MAX_TOOLS: Final = 1024
MAX_CALLS: Final = 16  # that an answer is made to hold
MAX_DEPTH: Final = 64
MAX_BYTES: Final = 1 << 20
CHOICES: Final = ("auto", "none", "required")
# Templates write the parameters out, or iterate over them.
NO_PARAMETERS: Final = {"type": "object", "properties": {}}


class ToolUse(msgspec.Struct, frozen=True):
    """What a request says about tools. The model sees `tools` whatever the choice is, so that a conversation's prefix
    stays the same (and as vLLM does by default)."""

    tools: tuple[Tool, ...] = ()
    """Without those that the choice does not list, if it lists some: a model calls what it sees."""
    choice: str = "auto"
    """auto, none, required, or named."""
    name: str = ""
    """Of the tool that must be called, if that is named."""
    parallel: bool = True
    """Whether an answer may hold several calls."""
    places: dict[str, str] = {}
    """By the name of a tool, the path of its parameters in the request."""
    sent: dict[str, dict[str, Any]] = {}
    """By the name of a tool, what the client said of its function."""

    @property
    def callable(self) -> tuple[Tool, ...]:
        return () if self.choice == "none" else self.tools

    @property
    def enforced(self) -> bool:
        """Whether the answer must be calls, as `enforced_calls` describes them."""
        return self.choice in ("required", "named")

    def enforced_calls(self) -> Piece:
        """An array of calls, each with arguments that fit its tool's schema."""
        most = MAX_CALLS if self.choice == "required" and self.parallel else 1
        call = OneOf([call_object(structs.replace(tool, strict=True)) for tool in self.bound])
        return ("[", listed(call, most))

    def parameter_schemas(self) -> list[tuple[str, Mapping[str, Any]]]:
        """Those that arguments have to fit, each with its path in the request."""
        return [(self.places[tool.name], schema_of_arguments(tool)) for tool in self.bound if tool.parameters]

    @property
    def bound(self) -> list[Tool]:
        """The tools whose arguments have to fit their schemas."""
        if self.choice == "named":
            return [tool for tool in self.tools if tool.name == self.name]
        return [tool for tool in self.callable if tool.strict or self.choice == "required"]

    def for_template(self, *, as_sent: bool = False) -> list[dict[str, Any]] | None:
        """In OpenAI's form, as templates expect it: each with the same fields, unless `as_sent`. None where there are
        no tools."""
        if as_sent:
            return [{"type": "function", "function": self.sent[tool.name]} for tool in self.tools] or None
        return [_for_template(tool) for tool in self.tools] or None


def check_tools(tools: Any, choice: Any, parallel: bool | None, ignored: Ignored) -> ToolUse:
    """Raises ApiError naming the field's path."""
    checked = _check_list([] if tools is None else tools, ignored)
    kind, names = _check_choice(choice, dict.fromkeys(tool.name for tool in checked))
    places = {tool.name: f"tools[{index}].function.parameters" for index, tool in enumerate(checked)}
    sent = {tool.name: _sent(given["function"]) for tool, given in zip(checked, tools or [], strict=True)}
    if kind == "named":
        return ToolUse(checked, kind, next(iter(names)), parallel is not False, places, sent)
    allowed = tuple(tool for tool in checked if not names or tool.name in names)
    return ToolUse(allowed, kind, parallel=parallel is not False, places=places, sent=sent)


def _check_list(tools: Any, ignored: Ignored) -> tuple[Tool, ...]:
    if not isinstance(tools, list):
        raise bad_request(f"tools: {shown(tools)} is not valid; use a list of tools.", "tools")
    if len(tools) > MAX_TOOLS:
        raise bad_request(f"tools: {len(tools):,} tools are too many; send {MAX_TOOLS:,} or fewer.", "tools")
    size = _size(tools)
    if size > MAX_BYTES:
        raise bad_request(f"tools: {size:,} bytes are too many; send {MAX_BYTES:,} or fewer.", "tools")
    checked: dict[str, Tool] = {}
    for index, given in enumerate(tools):
        tool = _check_tool(given, f"tools[{index}]", ignored)
        if tool.name in checked:
            place = f"tools[{index}].function.name"
            raise bad_request(f"{place}: {shown(tool.name)} is the name of two tools; give each its own.", place)
        checked[tool.name] = tool
    return tuple(checked.values())


def _check_tool(tool: Any, param: str, ignored: Ignored) -> Tool:
    if not isinstance(tool, dict):
        raise bad_request(f"{param}: {shown(tool)} is not valid; use an object with type and function.", param)
    if tool.get("type", "function") != "function":
        message = f'{param}.type: {shown(tool["type"])} is not supported; use "function".'
        raise bad_request(message, f"{param}.type", "unsupported_field")
    place = f"{param}.function"
    function = tool.get("function")
    if function is None:
        raise missing(place)
    if not isinstance(function, dict):
        raise bad_request(f"{place}: {shown(function)} is not valid; use an object with name and parameters.", place)
    for field in [field for field in tool if field not in ("type", "function")]:
        ignored.add(f"tools[].{field}", f"{param}.{field}")
    for field in [field for field in function if field not in Tool.__struct_fields__]:
        ignored.add(f"tools[].function.{field}", f"{place}.{field}")
    return Tool(
        name=_check_name(function.get("name"), f"{place}.name"),
        description=_check_type(function.get("description"), str, "a string", f"{place}.description") or "",
        parameters=_check_parameters(function.get("parameters"), f"{place}.parameters"),
        strict=bool(_check_type(function.get("strict"), bool, "true or false", f"{place}.strict")),
    )


def _check_name(name: Any, param: str) -> str:
    if name is None:
        raise missing(param)
    if not isinstance(name, str) or not NAME.fullmatch(name):
        message = f"{param}: {shown(name)} is not valid; use 1 to 64 letters, digits, dots, dashes and underscores."
        raise bad_request(message, param)
    return name


def _check_type(value: Any, type: type, words: str, param: str) -> Any:
    if value is not None and not isinstance(value, type):
        raise bad_request(f"{param}: {shown(value)} is not valid; use {words}.", param)
    return value


def _check_parameters(parameters: Any, param: str) -> dict[str, Any]:
    _check_type(parameters, dict, "a JSON schema of an object", param)
    if _is_deep(parameters):
        raise bad_request(f"{param}: nested more than {MAX_DEPTH} levels deep; make it flatter.", param)
    return dict(parameters or {})


def _size(tools: list[Any]) -> int:
    try:
        return len(msgspec.json.encode(tools))
    except RecursionError:
        raise bad_request("tools: nested too deeply; make them flatter.", "tools") from None


def _is_deep(value: Any) -> bool:
    level = [value]
    for _ in range(MAX_DEPTH):
        level = [inner for outer in level for inner in _inside(outer)]
    return bool(level)


def _inside(value: Any) -> Sequence[Any]:
    if isinstance(value, dict):
        return list(value.values())
    return value if isinstance(value, list) else ()


def _check_choice(choice: Any, names: Collection[str]) -> tuple[str, frozenset[str]]:
    """The kind of choice, and the names to which it restricts the tools."""
    if choice is None:
        return "auto", frozenset()
    if isinstance(choice, str) and choice in CHOICES:
        if choice == "required" and not names:
            raise _needs_tools(choice)
        return choice, frozenset()
    if isinstance(choice, dict) and choice.get("type") == "allowed_tools":
        return _check_allowed(choice.get("allowed_tools"), names)
    name = _name_of(choice)
    if name is None:
        known = 'use "auto", "none", "required" or {"type": "function", "function": {"name": ...}}'
        raise bad_request(f"tool_choice: {shown(choice)} is not valid; {known}.", "tool_choice")
    if not names:
        raise _needs_tools(choice)
    _check_known(name, names, "tool_choice.function.name")
    return "named", frozenset({name})


def _check_allowed(allowed: Any, names: Collection[str]) -> tuple[str, frozenset[str]]:
    place = "tool_choice.allowed_tools"
    if not isinstance(allowed, dict):
        raise bad_request(f"{place}: {shown(allowed)} is not valid; use an object with mode and tools.", place)
    mode, tools = allowed.get("mode"), allowed.get("tools")
    for field, value in (("mode", mode), ("tools", tools)):
        if value is None:
            raise missing(f"{place}.{field}")
    if mode not in ("auto", "required"):
        raise bad_request(f'{place}.mode: {shown(mode)} is not valid; use "auto" or "required".', f"{place}.mode")
    if not isinstance(tools, list) or not tools:
        raise bad_request(f"{place}.tools: {shown(tools)} is not valid; use a list of tools.", f"{place}.tools")
    for index, tool in enumerate(tools):
        _check_known(_name_of(tool), names, f"{place}.tools[{index}].function.name")
    return mode, frozenset(tool["function"]["name"] for tool in tools)


def _name_of(tool: Any) -> str | None:
    """The name in {"type": "function", "function": {"name": ...}}; None if it is nothing of the kind."""
    function = tool.get("function") if isinstance(tool, dict) and tool.get("type") == "function" else None
    name = function.get("name") if isinstance(function, dict) else None
    return name if isinstance(name, str) else None


def _check_known(name: str | None, names: Collection[str], param: str) -> None:
    if name not in names:
        known = f"use {' or '.join(list(names)[:5])}" if names else "send tools, too"
        raise bad_request(f"{param}: no tool is named {shown(name)}; {known}.", param)


def _needs_tools(choice: Any) -> ApiError:
    return bad_request(f"tool_choice: {shown(choice)} needs tools; send tools, too.", "tool_choice")


def _sent(function: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in function.items() if key in Tool.__struct_fields__ and value is not None}


def _for_template(tool: Tool) -> dict[str, Any]:
    function = {"name": tool.name, "description": tool.description, "parameters": tool.parameters or NO_PARAMETERS}
    return {"type": "function", "function": function}
