"""How formats write calls, as pieces of a grammar: with these, a call can only be of a tool that there is, and the
arguments of a strict one fit its schema."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any, Final, NamedTuple, TypeAlias

from appliance.checkpoint.call_grammar import SPACE, Json, OneOf, Pattern, Piece, Repeated, Upto, optional
from appliance.checkpoint.grammar import escaped
from appliance.serving.parsers.base import Tool
from appliance.serving.parsers.parameters import referred_schema, types_of

Shapes: TypeAlias = Callable[[Sequence[Tool]], Mapping[str, Piece]]
"""What comes behind each marker of a call, up to where free text goes on."""

_ANY_ARGUMENTS: Final = {"type": "object"}
MOST: Final = 16  # calls in one list
_KEY: Final = re.compile(r"[^\"<>\s][^\"<>\n]*(?<!\s)")
_ANY_KEY: Final = Pattern(r"[^\s\"<>][^\"<>\n]{0,255}")
# What a schema may say and still be no more than a list of parameters.
_LISTED: Final = frozenset({
    "type", "properties", "required", "additionalProperties", "title", "description", "$defs", "definitions", "$schema",
    "strict",
})  # fmt: skip
_ANNOTATIONS: Final = frozenset({"title", "description", "default", "examples", "deprecated"})
_DEFINITIONS: Final = ("#/$defs/", "#/definitions/")
_TYPES: Final = {"string", "integer", "number", "boolean", "null", "array", "object"}
# Types whose values are few, as they are written.
_WORDS: Final = {"null": ("null",), "boolean": ("true", "false")}
_MOST_LENGTH: Final = 1000
_MOST_LEVELS: Final = 16
_MOST_OPTIONS: Final = 64


def arguments(tool: Tool) -> Json:
    """Those of a tool that is not strict are any."""
    return Json(schema_of_arguments(tool) if tool.strict else _ANY_ARGUMENTS)


def schema_of_arguments(tool: Tool) -> Mapping[str, Any]:
    """The tool's own, of an object even where that leaves it open, as no parser takes another value for arguments. Of
    one that allows no object, a schema that nothing fits."""
    given = tool.parameters
    types = given.get("type")
    if types == "object":
        return given
    is_open = types is None or (isinstance(types, list) and "object" in types)
    return {**given, **_ANY_ARGUMENTS} if is_open else {"allOf": [given, _ANY_ARGUMENTS]}


def call_object(tool: Tool, *more: Piece) -> Piece:
    """With `more` before its last brace."""
    name = (SPACE, '"name"', SPACE, ":", SPACE, json.dumps(tool.name), SPACE, ",")
    return ("{", *name, SPACE, '"arguments"', SPACE, ":", SPACE, arguments(tool), *more, SPACE, "}")


def calls_in_json(tools: Sequence[Tool], *more: Piece) -> tuple[Piece, Piece]:
    """One call's object, and what is behind the bracket of a list of them."""
    call = OneOf([call_object(tool, *more) for tool in tools])
    return call, listed(call, MOST)


def listed(call: Piece, most: int) -> Piece:
    """Calls in a list, behind its bracket."""
    return (SPACE, call, Repeated((SPACE, ",", SPACE, call), 0, most - 1), SPACE, "]")


def between(ends: Mapping[str, str]) -> Shapes:
    """An object or a list behind each marker, and then what ends it, if anything does."""

    def shapes(tools: Sequence[Tool]) -> Mapping[str, Piece]:
        call, items = calls_in_json(tools)
        calls = OneOf([call, ("[", items)])
        return {marker: (SPACE, calls, SPACE, end) if end else (SPACE, calls) for marker, end in ends.items()}

    return shapes


class ParameterTags(NamedTuple):
    """How a format writes a parameter: what `opening` makes of its key, and of whether it is text; its value; `end`."""

    opening: Callable[[Piece, bool], Piece]
    end: str
    strips_lines: bool = False
    says_kind: bool = False
    """Whether the opening tag says that the value is text, or JSON. Otherwise its schema does, for whoever reads it."""


def parameters(tool: Tool, tags: ParameterTags) -> Piece:
    """Of a call, in the order of the schema. Any, where the tool is not strict, or its schema says more than a list of
    parameters does."""
    if not tool.strict or not _is_list(tool.parameters):
        return Repeated((_free(_ANY_KEY, {}, {}, tags), SPACE))
    root = tool.parameters
    required = root.get("required") or ()
    written = []
    for key, schema in root["properties"].items():
        one = (_parameter(key, schema, root, tags), SPACE)
        written.append(one if key in required else optional(one))
    return tuple(written)


def _is_list(schema: Mapping[str, Any]) -> bool:
    keys = schema.get("properties")
    if not schema.keys() <= _LISTED or not isinstance(keys, dict):
        return False
    if any(not reference.startswith(_DEFINITIONS) for reference in _references(schema)):
        return False  # of a parameter's schema, its own root is another
    return all(_KEY.fullmatch(key) for key in keys) and set(schema.get("required") or ()) <= keys.keys()


def _references(schema: Any) -> Iterator[str]:
    waiting = [schema]
    while waiting:
        node = waiting.pop()
        if isinstance(node, dict):
            if isinstance(reference := node.get("$ref"), str):
                yield reference
            waiting += node.values()
        elif isinstance(node, list):
            waiting += node


def _parameter(key: str, schema: Any, root: Mapping[str, Any], tags: ParameterTags) -> Piece:
    definitions = {name: root[name] for name in ("$defs", "definitions") if name in root}
    texts: list[str] = []
    values: list[dict[str, Any]] = []
    options = list(islice(_options(schema, root), _MOST_OPTIONS + 1))
    if len(options) > _MOST_OPTIONS:
        return _free(key, schema, definitions, tags)
    for option in options:
        types = types_of(option, root)
        text = _bounded_text(option, tags) if types == {"string"} else None
        if text is not None:
            texts.append(text)
        elif types and "string" not in types:
            values.append(option)
        else:
            return _free(key, schema, definitions, tags)
    if texts and not tags.says_kind:  # then all must be one text
        words = [_words(value) for value in values]
        if not all(words) or (words and any(map(_is_word, _choices(options)))):
            return _free(key, schema, definitions, tags)
        texts += [escaped(word) for each in words for word in each]
        values = []
    of_json = [(tags.opening(key, False), SPACE, Json({**definitions, **value}), SPACE, tags.end) for value in values]
    line = "\\n?" if tags.strips_lines else ""
    text = f"{line}(?:{'|'.join(texts)}){line}"
    return OneOf([*of_json, *([(tags.opening(key, True), Upto(tags.end, text))] if texts else [])])


def _words(schema: Mapping[str, Any]) -> Sequence[str]:
    """All values of a schema, as they are written; none where they are too many."""
    if "const" in schema:
        return [json.dumps(schema["const"])]
    return (
        [json.dumps(value) for value in schema["enum"]] if "enum" in schema else _WORDS.get(str(schema.get("type")), ())
    )


def _choices(options: Sequence[Mapping[str, Any]]) -> list[str]:
    """The texts that a value may be, where they are listed."""
    values = [value for option in options for value in (*option.get("enum", ()), option.get("const"))]
    return [value for value in values if isinstance(value, str)]


def _is_word(text: str) -> bool:
    """Whether a text may be read as a value of another type."""
    try:
        json.loads(text)
    except ValueError:
        return False
    return True


def _free(key: Piece, schema: Any, definitions: Mapping[str, Any], tags: ParameterTags) -> Piece:
    text = (tags.opening(key, True), Upto(tags.end))
    if not tags.says_kind or types_of(schema, definitions) == {"string"}:
        return text
    whole = {**definitions, **schema} if isinstance(schema, dict) else schema
    return OneOf([text, (tags.opening(key, False), SPACE, Json(whole), SPACE, tags.end)])


def _options(schema: Any, root: Mapping[str, Any], level: int = 0) -> Iterator[dict[str, Any]]:
    """Schemas of which a value must fit one, each with its types where these are known."""
    given = schema if isinstance(schema, dict) else {}
    said = {name: value for name, value in given.items() if name not in _ANNOTATIONS}
    if level > _MOST_LEVELS or ("$ref" in said and len(said) > 1):
        yield {}
    elif isinstance(reference := said.get("$ref"), str):
        yield from _options(referred_schema(reference, root), root, level + 1)
    elif isinstance(parts := _alternatives(said), list):
        for part in parts:
            yield from _options(part, root, level + 1)
    elif isinstance(values := said.get("enum"), list) and (mixed := _types(said)) is not None:
        if said.keys() <= {"type", "enum"}:
            yield from ({"const": value} for value in values if types_of({"const": value}, root) <= mixed)
        else:
            yield {}
    elif isinstance(types := said.get("type"), list):
        yield from ({**said, "type": name} for name in types)
    else:
        yield said


def _alternatives(said: Mapping[str, Any]) -> Any:
    for key in ("anyOf", "oneOf", "allOf"):
        if said.keys() == {key} and (key != "allOf" or len(said[key]) == 1):
            return said[key]
    return None


def _types(said: Mapping[str, Any]) -> set[str] | None:
    """Of an enumeration whose values may be of several types; None of one whose values are of its one type."""
    types = said.get("type")
    if isinstance(types, str):
        return None
    named = _TYPES if types is None else set(types)
    return named | {"integer"} if "number" in named else named


def _bounded_text(schema: Mapping[str, Any], tags: ParameterTags) -> str | None:
    """A pattern for the values of a schema of texts; None if they may be any, or if no pattern keeps them in bounds."""
    choices = schema.get("enum", [schema["const"]] if "const" in schema else None)
    if choices is not None:
        fits = choices and all(
            isinstance(text, str) and text == text.strip("\r\n") and tags.end not in text for text in choices
        )
        return "|".join(map(escaped, choices)) if fits else None
    least, most = schema.get("minLength", 0), schema.get("maxLength", _MOST_LENGTH)
    if {"minLength", "maxLength"}.isdisjoint(schema) or not 0 <= least <= most <= _MOST_LENGTH:
        return None
    return _text_of_length(least, most if "maxLength" in schema else None, tags.strips_lines)


def _text_of_length(least: int, most: int | None, strips_lines: bool) -> str:
    """In characters. Where a line's end at either side is the format's, the value has none."""
    if not strips_lines:
        return _any_of_length(least, most)
    edge = r"[^\r\n]"
    lengths = [""] if least == 0 else []
    if least <= 1 and (most is None or most >= 1):
        lengths.append(edge)
    if most is None or most >= 2:
        lengths.append(f"{edge}{_any_of_length(max(least - 2, 0), None if most is None else most - 2)}{edge}")
    return "|".join(lengths)


def _any_of_length(least: int, most: int | None) -> str:
    return f"(?s:.{{{least},{'' if most is None else most}}})"
