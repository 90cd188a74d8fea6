"""The document as one HTML page, without a script and without anything from elsewhere."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator, Mapping
from typing import Any, Final, NamedTuple

import jinja2
from markupsafe import Markup, escape

ACCESS: Final = {"apiKey": "a key, where one is required", "consoleToken": "the console"}
STREAMS: Final = ("text/event-stream", "application/x-ndjson")
# Pairs of JSON Schema's limits, and of what they count.
LENGTHS: Final = (
    ("minLength", "maxLength", "characters"),
    ("minItems", "maxItems", "items"),
    ("minProperties", "maxProperties", "members"),
)
NAMES: Final = {"array": "list", "boolean": "true or false", None: "anything"}
PLURALS: Final = {"object": "objects", "string": "strings", "integer": "integers", "number": "numbers"}
# That a number fits into the engine's 32 or 64 bits says nothing to people.
LARGEST: Final = 1 << 31

Schema = Mapping[str, Any]


class Word(NamedTuple):
    """Of a type's description: the name of a schema that the page has a table of, or else plain words."""

    text: str
    linked: bool = False


Words = list[Word]
OR: Final = Word(" or ")


class Field(NamedTuple):
    name: str
    place: str
    """path, query or header; "" in a body."""
    type: Words
    limits: str
    required: bool
    default: str


class Answer(NamedTuple):
    status: str
    description: str
    type: Words
    streams: bool


class Operation(NamedTuple):
    id: str
    method: str
    path: str
    summary: str
    access: str
    description: str
    fields: list[Field]
    answers: list[Answer]


class Table(NamedTuple):
    name: str
    description: str
    values: list[str]
    fields: list[Field]


def documentation_page(document: dict[str, Any]) -> str:
    """Of an OpenAPI document as `openapi_document` makes it."""
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("appliance.serving.openapi", ""),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=jinja2.StrictUndefined,
    )
    environment.filters["code"] = _code
    schemas = document["components"]["schemas"]
    operations = [
        _operation(path, method, operation, schemas)
        for path, methods in document["paths"].items()
        for method, operation in methods.items()
    ]
    bodies = {_name(schema) for schema in _bodies(document)}
    tables = [_table(name, schema) for name, schema in sorted(schemas.items()) if name not in bodies]
    about = document["info"]
    return environment.get_template("page.html").render(about=about, operations=operations, tables=tables)


def _code(text: str) -> Markup:
    """What stands between backticks as code."""
    return Markup(re.sub("`([^`]+)`", r"<code>\1</code>", str(escape(text))))


def _bodies(document: dict[str, Any]) -> Iterator[Schema]:
    for methods in document["paths"].values():
        for operation in methods.values():
            if "requestBody" in operation:
                yield operation["requestBody"]["content"]["application/json"]["schema"]


def _operation(path: str, method: str, operation: dict[str, Any], schemas: Mapping[str, Schema]) -> Operation:
    fields = [
        Field(each["name"], each["in"], *_described(each["schema"]), each["required"], "")
        for each in operation["parameters"]
    ]
    body: Schema = {}
    if "requestBody" in operation:
        body = schemas[_name(operation["requestBody"]["content"]["application/json"]["schema"])]
    asked = [name for each in operation["security"] for name in each]
    return Operation(
        id=operation["operationId"],
        method=method.upper(),
        path=path,
        summary=operation["summary"],
        access=ACCESS[asked[0]] if asked else "anybody",
        description=body.get("description", ""),
        fields=[*fields, *_fields(body)],
        answers=[_answer(status, answer) for status, answer in operation["responses"].items()],
    )


def _answer(status: str, answer: dict[str, Any]) -> Answer:
    kinds = [kind for kind in answer["content"] if kind not in STREAMS]
    schemas = [answer["content"][kind].get("schema") for kind in kinds]
    types = [[Word(kind)] if schema is None else _type(schema) for kind, schema in zip(kinds, schemas, strict=True)]
    return Answer(status, answer["description"], _alternatives(types), len(kinds) < len(answer["content"]))


def _table(name: str, schema: Schema) -> Table:
    values = [_value(value) for value in schema.get("enum", ())]
    return Table(name, schema.get("description", ""), values, _fields(schema))


def _fields(schema: Schema) -> list[Field]:
    required = schema.get("required", ())
    fields = [
        Field(name, "", *_described(each, optional="default" in each), name in required, _default(each))
        for name, each in schema.get("properties", {}).items()
    ]
    return sorted(fields, key=lambda field: not field.required)


def _default(schema: Schema) -> str:
    """None stands for a field that was not given."""
    return "" if schema.get("default") is None else _value(schema["default"])


def _described(schema: Schema, *, optional: bool = False) -> tuple[Words, str]:
    """Type and limits. That a field which need not be given may be null goes without saying."""
    each = schema.get("anyOf", [schema])
    given = [kind for kind in each if not (optional and kind.get("type") == "null")]
    return _alternatives([_type(kind) for kind in given]), "; ".join(filter(None, map(_limits, given)))


def _type(schema: Schema) -> Words:
    if "anyOf" in schema:
        return _alternatives([_type(each) for each in schema["anyOf"]])
    if "$ref" in schema:
        return [Word(_name(schema), linked=True)]
    if "enum" in schema:
        return _alternatives([[Word(_value(value))] for value in schema["enum"]])
    kind = schema.get("type")
    if kind == "array" and schema.get("items"):
        return [Word("list of "), *(Word(PLURALS.get(text, text), linked) for text, linked in _type(schema["items"]))]
    if kind == "object" and isinstance(schema.get("additionalProperties"), dict):
        return [Word("object of "), *_type(schema["additionalProperties"])]
    return [Word(NAMES.get(kind, str(kind)))]


def _alternatives(types: list[Words]) -> Words:
    return [word for index, type in enumerate(types) for word in ([OR, *type] if index else type)]


def _name(schema: Schema) -> str:
    return str(schema["$ref"]).rpartition("/")[2]


def _value(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


def _limits(schema: Schema) -> str:
    limits = [_range(schema)]
    for least, most, counted in LENGTHS:
        bounds = _range({"minimum": schema.get(least), "maximum": schema.get(most)})
        limits.append(f"{bounds} {counted}" if bounds else "")
    items = schema.get("items")
    if isinstance(items, dict) and (inner := _limits(items)):
        limits.append(f"each {inner}")
    return "; ".join(filter(None, limits))


def _range(schema: Schema) -> str:
    least, above, most = schema.get("minimum"), schema.get("exclusiveMinimum"), schema.get("maximum")
    most = None if most is not None and most >= LARGEST else most
    least = None if least is not None and least <= -LARGEST else least
    if above is not None:
        return f"above {_number(above)}" + (f", at most {_number(most)}" if most is not None else "")
    if least is not None and most is not None:
        return f"{_number(least)} to {_number(most)}"
    if least is not None:
        return f"{_number(least)} or more"
    return f"at most {_number(most)}" if most is not None else ""


def _number(value: float) -> str:
    return f"{int(value):,}" if math.isfinite(value) and value == int(value) else f"{value:g}"
