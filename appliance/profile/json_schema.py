"""The JSON Schema of a profile, made from the rows: for editors and for programs. Published in docs/.

`python -m appliance.profile.json_schema` prints it. What a schema cannot say (lengths in bytes, GPUs that exist) is
said by `validation.check` and by preflight.
"""

from __future__ import annotations

import json
from typing import Any, Final

from appliance.profile import site_backends, vllm_options
from appliance.profile.schema import SETTINGS, Setting, Type

DIALECT: Final = "https://json-schema.org/draft/2020-12/schema"
_TYPES: Final[dict[Type, str | list[str]]] = {
    Type.TEXT: "string",
    Type.INTEGER: "integer",
    Type.NUMBER: "number",
    Type.BOOLEAN: "boolean",
    Type.SIZE: ["integer", "string"],
    Type.OPTIONS: "object",
}
_FLAG_TYPES: Final[dict[str, dict[str, Any]]] = {
    "integer": {"type": "integer"},
    "number": {"type": "number"},
    "boolean": {"type": "boolean"},
    "text": {"type": "string"},
    "json": {"type": "string"},
    "integers": {"type": "array", "items": {"type": "integer"}, "minItems": 1},
}


def json_schema() -> dict[str, Any]:
    root = _object("An Ingot profile: a model and how to run it.")
    root = {"$schema": DIALECT, "title": "Ingot profile", **root}
    for setting in SETTINGS:
        section, _, name = setting.key.rpartition(".")
        target = root["properties"].setdefault(section, _object("")) if section else root
        target["properties"][name] = _property(setting)
        if setting.required:
            target.setdefault("required", []).append(name)
            if section and section not in root.setdefault("required", []):
                root["required"].append(section)
    return root


def _object(description: str) -> dict[str, Any]:
    made: dict[str, Any] = {"type": "object", "additionalProperties": False, "properties": {}}
    return {"description": description, **made} if description else made


def _property(setting: Setting) -> dict[str, Any]:
    kind = _TYPES[setting.type]
    made: dict[str, Any] = {"description": setting.help, "type": kind}
    if setting.none is not None:
        made["type"] = [*([kind] if isinstance(kind, str) else kind), "null"]
        made["description"] += f" null: {setting.none}."
    if not setting.required:
        made["default"] = setting.default
    if setting.allowed:
        made["enum"] = list(setting.allowed)
    elif setting.type is Type.TEXT:
        made["minLength"] = 1
        made["maxLength"] = setting.max_length
    for name, value in (
        ("minimum", setting.minimum),
        ("maximum", setting.maximum),
        ("exclusiveMinimum", setting.above),
        ("pattern", setting.pattern),
    ):
        if value is not None:
            made[name] = value
    if setting.key == site_backends.KEY:
        made["additionalProperties"] = False
        made["patternProperties"] = {
            f"^{op}@[0-9]+(?:x[0-9]+)*(?::[a-z0-9_]+)?$": {"enum": list(names)}
            for op, names in site_backends.BACKENDS.items()
        }
    elif setting.type is Type.OPTIONS:
        made["additionalProperties"] = False
        made["properties"] = _options(setting.key)
    return made


def _options(key: str) -> dict[str, Any]:
    if key == "vllm.extra-args":
        return {
            flag.name: {
                "description": flag.help,
                **_FLAG_TYPES[flag.kind],
                **({"enum": list(flag.choices)} if flag.choices else {}),
            }
            for flag in vllm_options.FLAGS
        }
    return {
        variable.name: {"description": variable.help, "type": "string", "pattern": f"^(?:{variable.pattern})$"}
        for variable in vllm_options.VARIABLES
    }


def text() -> str:
    """As it is published."""
    return json.dumps(json_schema(), indent=2, ensure_ascii=False) + "\n"


if __name__ == "__main__":
    print(text(), end="")
