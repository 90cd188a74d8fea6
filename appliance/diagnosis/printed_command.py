"""The command that started vLLM, made again from what it prints of its arguments, without the one that was wrong."""

from __future__ import annotations

import ast
import json
import re
import shlex
from collections.abc import Iterator
from typing import Any

from appliance.diagnosis.searchable import Searchable
from appliance.secret_names import is_secret_name

SIGN = b"non-default args: {"
PRINTED = re.compile(r"non-default args: (?P<arguments>\{.{0,8000}\})\s{0,8}$")
MODEL = ("model_tag", "model")
# What is not left out: there is nothing to serve, or it would be served without encryption.
KEPT = (*MODEL, "ssl_")


def changed_command(log: Searchable, key: str, value: str | None) -> str | None:
    """`vllm serve` with the arguments that a log prints, `key` set to `value` or left out. None where the log does not
    print them whole, where `key` is not one of them or must stay, or where one of them is a secret."""
    arguments = _printed(log)
    if key not in arguments or key.startswith(KEPT) or any(map(is_secret_name, arguments)):
        return None
    model = next((arguments[name] for name in MODEL if name in arguments), None)
    if not isinstance(model, str):
        return None
    words = ["vllm", "serve", model]
    for name, given in arguments.items():
        if name not in MODEL and (name != key or value is not None):
            words += _words(name, given if name != key else value)
    return shlex.join(words)


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


def _words(name: str, value: Any) -> Iterator[str]:
    flag = name.replace("_", "-")
    if isinstance(value, bool):
        yield f"--{flag}" if value else f"--no-{flag}"
        return
    yield f"--{flag}"
    if isinstance(value, dict):
        yield json.dumps(value)
    elif isinstance(value, (list, tuple)):
        yield from (item if isinstance(item, str) else json.dumps(item) for item in value)
    else:
        yield str(value)
