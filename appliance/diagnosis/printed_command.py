"""The command that started vLLM, made again from what it prints of its arguments, without the one that was wrong."""

from __future__ import annotations

import ast
import json
import re
import shlex
from typing import Any

from appliance.diagnosis.searchable import Searchable
from appliance.diagnosis.shell_words import is_operand
from appliance.redaction import holds_secret
from appliance.secret_names import gives_secret, is_secret_key

SIGN = b"non-default args: {"
PRINTED = re.compile(r"non-default args: (?P<arguments>\{.{0,8000}\})\s{0,8}$")
MODEL = ("model_tag", "model")
# What is not left out: there is nothing to serve, or it would be served without encryption.
KEPT = (*MODEL, "ssl_")


def changed_command(log: Searchable, key: str, value: str | None) -> str | None:
    """`vllm serve` with the arguments that a log prints, `key` set to `value` or left out. None where the log does not
    print them whole, where `key` is not one of them or must stay, or where one of them cannot be told: it is or holds
    a secret, or would be taken for something else than it was."""
    arguments = _printed(log)
    if key not in arguments or key.startswith(KEPT) or not _can_be_told(arguments):
        return None
    model = next((arguments[name] for name in MODEL if name in arguments), None)
    if not isinstance(model, str) or not is_operand(model):
        return None
    words = ["vllm", "serve", model]
    for name, given in arguments.items():
        if name not in MODEL and (name != key or value is not None):
            argument = _words(name, given if name != key else value)
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
            arguments = ast.literal_eval(found["arguments"]) if found is not None else {}
        except (ValueError, SyntaxError, RecursionError, MemoryError):
            continue  # it holds an object, of which only its class's words are printed
        if isinstance(arguments, dict) and all(isinstance(name, str) for name in arguments):
            return arguments
    return {}


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
