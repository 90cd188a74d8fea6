"""Arguments whose format writes them as plain text: what JSON they are, by the tool's schema."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any, Final

from appliance.serving.parsers.base import Tool
from appliance.serving.parsers.calls import CallParser
from appliance.serving.parsers.json_scanner import is_json
from appliance.serving.parsers.literals import NUMBER, escaped, python_as_json
from appliance.serving.parsers.markers import markers
from appliance.serving.parsers.reader import SPACE, Ended, Steps

_MOST_SCHEMAS: Final = 256  # that are looked at for one parameter: schemas may refer to themselves
_INTEGER: Final = re.compile(r"-?(?:0|[1-9][0-9]*)(?:\.0+)?")
_LINE_ENDS: Final = ("\r\n", "\n")


class ParameterParser(CallParser):
    """Calls whose parameters are text between tags. Each is an argument once it is complete; one that is cut off stays
    a string without its end."""

    strips_lines = False
    """Whether a line's end behind the opening tag and one before the closing tag are the format's, not the value's."""

    _first = True
    _schema: Mapping[str, Any] = {}

    def begin_parameters(self, tool: str) -> None:
        """The call `tool` begins, as soon as it is clear what its parameters are."""
        self.name(tool)
        self._first = True
        self._schema = self.tools.get(tool, Tool(tool)).parameters

    def parameter(self, key: str, end: str, text: bool | None = None) -> Steps[None]:
        """The value of `key`, behind its tag, up to `end`. `text`: whether it is text, or else JSON, where the model
        says so."""
        if self._first:
            self.begin()
        self.argue(f'{"{" if self._first else ", "}"{escaped(key)}": ')
        self._first = False
        parts: list[str] = []
        complete = yield from self.reader.read_until(markers(end), parts.append)
        value = self._stripped("".join(parts), bool(complete))
        if not complete:
            self.argue(f'"{escaped(value)}')
            raise Ended
        self.argue(self._as_json(key, value, text))

    def end_parameters(self) -> None:
        if self._first:
            self.begin("{")
        self.argue("}")

    def _stripped(self, value: str, complete: bool) -> str:
        if self.strips_lines:
            for line_end in _LINE_ENDS:
                if value.startswith(line_end):
                    value = value[len(line_end) :]
                    break
            for line_end in _LINE_ENDS if complete else ():
                if value.endswith(line_end):
                    return value[: -len(line_end)]
        return value

    def _as_json(self, key: str, value: str, text: bool | None) -> str:
        if text is not None:
            return value if not text and is_json(value) else f'"{escaped(value)}"'
        properties = self._schema.get("properties")
        schema = properties.get(key) if isinstance(properties, Mapping) else None
        return as_json(value, types_of(schema, self._schema))


def as_json(value: str, types: set[str]) -> str:
    """The JSON of a value that may be of these types, the strictest first; a string where it is of none. Where nothing
    is known, only objects and arrays are more than strings. Python's names and literals are understood, as models write
    them."""
    word = value.strip(SPACE)
    if "null" in types and word in ("null", "None"):
        return "null"
    if "boolean" in types and word in ("true", "false", "True", "False"):
        return word.lower()
    if ("integer" in types and _INTEGER.fullmatch(word)) or ("number" in types and NUMBER.fullmatch(word)):
        return word
    for kind, bracket in (("object", "{"), ("array", "[")):
        if word.startswith(bracket) and (not types or kind in types):
            if is_json(word):
                return word
            if types and (converted := python_as_json(word)) is not None:
                return converted
    return f'"{escaped(value)}"'


def types_of(schema: object, root: Mapping[str, Any]) -> set[str]:
    """The JSON types that a schema allows, as far as it says: by type, enum, const, and the schemas that it is made of
    or refers to in `root`."""
    types: set[str] = set()
    waiting = [schema]
    for _ in range(_MOST_SCHEMAS):
        if not waiting:
            break
        node = waiting.pop()
        if not isinstance(node, Mapping):
            continue
        types.update(_own_types(node))
        for key in ("anyOf", "oneOf", "allOf"):
            if isinstance(parts := node.get(key), list):
                waiting += parts
        if isinstance(reference := node.get("$ref"), str):
            waiting.append(referred_schema(reference, root))
    return types


def _own_types(schema: Mapping[str, Any]) -> Iterator[str]:
    declared = schema.get("type")
    if isinstance(declared, str):
        yield declared
    elif isinstance(declared, list):
        yield from (name for name in declared if isinstance(name, str))
    elif "const" in schema:
        yield _type_of(schema["const"])
    elif isinstance(values := schema.get("enum"), list):
        yield from map(_type_of, values)
    elif "properties" in schema:
        yield "object"
    elif "items" in schema:
        yield "array"
    if schema.get("nullable") is True:
        yield "null"


def _type_of(value: object) -> str:
    names = {bool: "boolean", int: "integer", float: "number", type(None): "null", dict: "object", list: "array"}
    return names.get(type(value), "string")


def referred_schema(reference: str, root: Mapping[str, Any]) -> object:
    node: object = root
    for part in reference.removeprefix("#").split("/")[1:]:
        if not isinstance(node, Mapping):
            return None
        node = node.get(part.replace("~1", "/").replace("~0", "~"))
    return node
