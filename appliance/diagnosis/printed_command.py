"""The command that started vLLM, made again from what it prints of its arguments: without the one that was wrong, or
with another value, or without a variable of its environment."""

from __future__ import annotations

import ast
import json
import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from appliance.diagnosis.searchable import Searchable
from appliance.diagnosis.shell_words import is_operand, is_variable
from appliance.redaction import holds_secret
from appliance.secret_names import gives_secret, is_secret_key

SIGN = b"non-default args: {"
ON_THE_HUB = re.compile(r"[A-Za-z0-9][\w.-]{0,80}/[A-Za-z0-9][\w.-]{0,120}")
# A relative path that begins so is a folder's.
FOLDERS = ("model", "models", "checkpoints", "weights", "data", "output", "outputs")
PRINTED = re.compile(r"non-default args: (?P<arguments>\{.{0,8000}\})\s{0,8}$")
MODEL = ("model_tag", "model")
# What is not left out: there is nothing to serve, or it would be served elsewhere, to anybody, or without encryption.
KEPT = (*MODEL, "uds", "host", "middleware", "api_key", "ssl_")
# Objects among the arguments that a flag takes as JSON, field by field.
AS_JSON = ("LoRAModulePath",)
MAX_DEPTH = 4


@dataclass(frozen=True)
class Untold:
    """An argument whose value cannot be had from what is printed; of an object, its fields."""

    fields: frozenset[str] = frozenset()


def changed_command(log: Searchable, key: str, value: int | str | None) -> str | None:
    """`vllm serve` with the arguments that a log prints, `key` set to `value` or left out. Of a key inside an argument
    that is an object, the whole argument is left out. None where the log does not print them whole, where `key` is none
    of them or must stay, or where one of those that stay cannot be told: it is or holds a secret, or would be taken for
    something else than it was."""
    arguments = _printed(log)
    outer = _argument_of(key, arguments)
    if outer is None or outer.startswith(KEPT):
        return None
    return _command({**arguments, outer: value if outer == key else None})


def extended_command(log: Searchable, values: Mapping[str, Any]) -> str | None:
    """The same with these arguments, whether or not they were given."""
    arguments = _printed(log)
    return _command({**arguments, **values}) if arguments else None


def command_without_variables(log: Searchable, names: Sequence[str]) -> str | None:
    """The same command, started without these variables of the environment."""
    command = _command(_printed(log))
    if command is None or not all(map(is_variable, names)):
        return None
    return f"env {' '.join(f'-u {name}' for name in names)} {command}"


def model_on_the_hub(log: Searchable) -> str | None:
    """The model that a log's arguments ask for, where that is a name on the hub and looks like no folder's."""
    model = next((value for name in MODEL if (value := _printed(log).get(name)) is not None), None)
    if not isinstance(model, str) or not ON_THE_HUB.fullmatch(model):
        return None
    return None if model.startswith(tuple(f"{folder}/" for folder in FOLDERS)) or Path(model).is_dir() else model


def _argument_of(key: str, arguments: dict[str, Any]) -> str | None:
    """The argument that has this name, or else the one in which the name stands."""
    if key in arguments:
        return key
    return next((name for name, value in arguments.items() if _holds(value, key)), None)


def _holds(value: Any, key: str, depth: int = 0) -> bool:
    if isinstance(value, Untold):
        return key in value.fields
    if depth > MAX_DEPTH or not isinstance(value, dict):
        return False
    return key in value or any(_holds(inner, key, depth + 1) for inner in value.values())


def _command(arguments: dict[str, Any]) -> str | None:
    """An argument that is None is left out."""
    given = {name: value for name, value in arguments.items() if value is not None}
    model = next((given[name] for name in MODEL if name in given), None)
    if not isinstance(model, str) or not is_operand(model) or not _can_be_told(given):
        return None
    words = ["vllm", "serve", model]
    for name, value in given.items():
        if name not in MODEL:
            argument = _words(name, value)
            if argument is None:
                return None
            words += argument
    return shlex.join(words)


def _can_be_told(value: Any) -> bool:
    """Of what JSON can hold, whatever names no secret, at any depth."""
    if isinstance(value, dict):
        names = all(isinstance(name, str) and _can_be_told(name) and not is_secret_key(name) for name in value)
        return names and all(map(_can_be_told, value.values()))
    if isinstance(value, (list, tuple)):
        return all(map(_can_be_told, value))
    if isinstance(value, str):
        return not gives_secret(value) and not holds_secret(value) and (value == "" or value.isprintable())
    return value is None or isinstance(value, (bool, int, float))


def _printed(log: Searchable) -> dict[str, Any]:
    for position in log.positions(SIGN):
        found = PRINTED.search(log.lines[position].text)
        try:
            parsed = ast.parse(found["arguments"], mode="eval").body if found is not None else None
        except (ValueError, SyntaxError, RecursionError, MemoryError):
            continue  # it holds an object of which only its class's words are printed
        if isinstance(parsed, ast.Dict) and all(isinstance(key, ast.Constant) for key in parsed.keys):
            pairs = ((key.value, value) for key, value in zip(parsed.keys, parsed.values, strict=True)
                     if isinstance(key, ast.Constant))  # fmt: skip
            arguments = {name: _value(value) for name, value in pairs if isinstance(name, str)}
            return arguments if len(arguments) == len(parsed.keys) else {}
    return {}


def _value(node: ast.expr) -> Any:
    """What an argument was given: an object of a kind that its flag takes as JSON is its fields, any other cannot be
    told."""
    if isinstance(node, ast.List):
        return [_value(item) for item in node.elts]
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in AS_JSON and not node.args:
        fields = {field.arg: _value(field.value) for field in node.keywords if field.arg is not None}
        return {name: value for name, value in fields.items() if value is not None and value is not False}
    if isinstance(node, ast.Call):
        return Untold(frozenset(field.arg for field in node.keywords if field.arg is not None))
    try:
        return ast.literal_eval(node)
    except (ValueError, SyntaxError, TypeError, RecursionError, MemoryError):
        return Untold()


def _words(name: str, value: Any) -> list[str] | None:
    """None where the name is no flag's, or where an item of a list would be taken for a flag."""
    flag = name.replace("_", "-")
    if not name.isidentifier():
        return None
    if isinstance(value, bool):
        return [f"--{flag}" if value else f"--no-{flag}"]
    if isinstance(value, (list, tuple)):
        items = [_text(item) for item in value]
        return ([f"--{flag}", *items] if items else []) if all(map(is_operand, items)) else None
    # In one word: a value that begins with a dash is not taken for a flag.
    return [] if value is None else [f"--{flag}={_text(value)}"]


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)
