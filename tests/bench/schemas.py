"""Fifty JSON schemas of what clients ask for: nested and recursive ones, enums, formats, patterns, allOf and anyOf.

Each bounds its texts and lists, so that any answer ends.
"""

from __future__ import annotations

from typing import Any, Final

Schema = dict[str, Any]


def text(most: int = 12, **more: Any) -> Schema:
    return {"type": "string", "maxLength": most, **more}


def number(least: float, most: float, **more: Any) -> Schema:
    return {"type": "number", "minimum": least, "maximum": most, **more}


def integer(least: int, most: int) -> Schema:
    return {"type": "integer", "minimum": least, "maximum": most}


def array(items: Any, most: int = 3, **more: Any) -> Schema:
    return {"type": "array", "items": items, "maxItems": most, **more}


def record(optional: tuple[str, ...] = (), /, **properties: Any) -> Schema:
    required = [name for name in properties if name not in optional]
    return {"type": "object", "properties": properties, "required": required, "additionalProperties": False}


def pattern(expression: str) -> Schema:
    return {"type": "string", "pattern": f"^{expression}$"}


def nested(depth: int) -> Schema:
    return record(name=text(4), inner=nested(depth - 1)) if depth else integer(0, 9)


POINT: Final = record(x=number(-9.5, 9.5), y=number(-9.5, 9.5))
PERSON: Final = record(("email",), name=text(), age=integer(0, 130), email=text(40, format="email"))
FORMATS: Final = ("date", "time", "date-time", "duration", "uuid", "ipv4", "ipv6", "email", "hostname")
PATTERNS: Final = (
    "[A-Z]{3}-[0-9]{4}", "(red|green|blue)(,(red|green|blue)){0,2}", r"\+?[0-9]{6,12}", r"#[0-9a-f]{6}",
    "[01]{8}", r"v[0-9]\.[0-9]{1,2}(-rc[1-9])?", "[A-Z][a-z]{1,9}( [A-Z][a-z]{1,9}){0,2}",
)  # fmt: skip
LIST: Final = record(("next",), value=integer(0, 9), next={"$ref": "#"})
TREE: Final = record(label=text(3), children=array({"$ref": "#/$defs/leaf"}))
RECURSIVE: Final[list[Schema]] = [
    LIST,
    {**TREE, "$defs": {"leaf": record(label=text(3), children=array({"$ref": "#/$defs/leaf"}, 1))}},
    {"anyOf": [integer(0, 9), record(op={"enum": ["+", "-"]}, left=integer(0, 9), right={"$ref": "#"})]},
    {
        "$ref": "#/$defs/even",
        "$defs": {
            "even": {"anyOf": [{"type": "null"}, record(odd={"$ref": "#/$defs/odd"})]},
            "odd": {"anyOf": [{"type": "boolean"}, record(even={"$ref": "#/$defs/even"})]},
        },
    },
    record(root={"$ref": "#/$defs/folder"})
    | {"$defs": {"folder": record(("inside",), name=text(4), size=integer(0, 99), inside={"$ref": "#/$defs/folder"})}},
]
COMBINED: Final[list[Schema]] = [
    {"allOf": [{"type": "object", "properties": {"a": integer(0, 9)}, "required": ["a"]},
               {"type": "object", "properties": {"b": text(3)}, "required": ["b"], "maxProperties": 2}]},
    {"allOf": [integer(0, 100), {"minimum": 10}, {"maximum": 20}]},
    {"allOf": [{"$ref": "#/$defs/short"}, {"minLength": 2}], "$defs": {"short": text(5)}},
    {"anyOf": [POINT, PERSON, {"type": "null"}]},
    {"anyOf": [text(4), integer(0, 9), {"type": "boolean"}]},
    {"oneOf": [record(kind={"const": "circle"}, radius=number(0, 9)),
               record(kind={"const": "line"}, ends=array(POINT, 2))]},
    array({"anyOf": [record(text=text(6)), record(call=record(name={"enum": ["look", "go"]}, times=integer(1, 3)))]}),
]  # fmt: skip
ENUMS: Final[list[Schema]] = [
    {"enum": ["sun", "rain", "snow"]},
    {"enum": [1, 2.5, "three", None, True, [4], {"five": 5}]},
    {"const": {"answer": 42}},
    record(day={"enum": ["mon", "tue"]}, hour={"enum": list(range(24))}),
    array({"enum": ["a", "b"]}, 6, minItems=2),
]
PLAIN: Final[list[Schema]] = [
    {"type": "boolean"},
    {"type": "null"},
    integer(-5, 5),
    number(0, 1),
    number(-2.5, 7.25, exclusiveMinimum=-2.5),
    {"type": "integer", "multipleOf": 7, "minimum": 0, "maximum": 700},
    text(20, minLength=3),
    {"type": ["integer", "null", "boolean"]} | {"minimum": 0, "maximum": 9},
    array(integer(0, 99), 5, minItems=1),
    array(array(integer(0, 1), 3), 3),
    {"type": "array", "prefixItems": [text(3), integer(0, 9)], "items": False, "minItems": 2},
]
OBJECTS: Final[list[Schema]] = [
    POINT,
    PERSON,
    record(people=array(PERSON, 2), place=POINT),
    nested(4),
    record(("a", "b", "c"), a=integer(0, 9), b=text(3), c={"type": "boolean"}),
    record() | {"patternProperties": {"^[a-z]{1,4}$": integer(0, 9)}, "maxProperties": 2},
]
SCHEMAS: Final[list[Schema]] = [
    *PLAIN,
    *ENUMS,
    *(text(40, format=name) for name in FORMATS),
    *map(pattern, PATTERNS),
    *RECURSIVE,
    *COMBINED,
    *OBJECTS,
]
