"""The examples of docs/api.md, against the bundled model: each block is run as its language and its first words say."""

from __future__ import annotations

import contextlib
import io
import json
import os
import re
import shlex
import subprocess
import tomllib
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import msgspec
import pytest
import yaml

from appliance.serving.anthropic.answers import AnthropicError
from appliance.serving.openapi.answers import Error
from tests.manual import ADDRESS, CLIENTS, MANUAL, OTHER, SERVED, Block, blocks
from tests.running import engine, fetch, wait_for

HIDDEN_SIZE = 256


class Command(NamedTuple):
    line: int
    words: list[str]
    shown: str
    """What the manual shows it to write."""


def commands(block: Block) -> Iterator[Command]:
    """A command begins after a `$` and goes on while a quotation is open or its line ends in a backslash."""
    for prompt in re.split(r"^\$ ", block.text, flags=re.MULTILINE)[1:]:
        lines = prompt.splitlines()
        for count in range(1, len(lines) + 1):
            with contextlib.suppress(ValueError):
                words = shlex.split("\n".join(lines[:count]).replace("\\\n", " "))
                if not lines[count - 1].endswith("\\"):
                    yield Command(block.line, words, "\n".join(lines[count:]))
                    break


BLOCKS = blocks()
COMMANDS = [command for block in BLOCKS if block.language == "console" for command in commands(block)]
CURL = [command for command in COMMANDS if command.words[0] == "curl"]
PYTHON = [block for block in BLOCKS if block.language == "python" and not block.client]
JSON = [block for block in BLOCKS if block.language == "json" and '"error"' in block.text]
# How programs are told of this server, and where they then ask.
SETTINGS = {
    "toml": ("base_url = ", "/responses"),
    "yaml": ("api_?[bB]ase: ", "/chat/completions"),
    "json": ('"api_url": ', "/chat/completions"),
}
CONFIGURED = [block for block in BLOCKS if block.language in SETTINGS and block not in JSON]


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with engine(tmp_path_factory.mktemp("examples") / "home") as (_, url):
        wait_for("the engine is ready", lambda: fetch(f"{url}/health")[0] == 200)
        yield url


def keys(text: str) -> set[str]:
    return set(re.findall(r'"(\w+)":', text))


def said(text: str) -> list[str]:
    """The beginnings of an answer's texts, as far as they are shown."""
    found = re.findall(r'"(?:content|text)":"([^"]+)"', text.replace("\n", " "))
    return [re.sub(r"[,.]? ?\.\.\.$", "", each) for each in found]


def test_the_manual_has_examples_of_each_kind() -> None:
    assert {block.language for block in BLOCKS} == {"console", "python", "typescript", *SETTINGS}
    assert {command.words[0] for command in COMMANDS} == {"curl", "export", "claude", "open-webui"}
    assert {block.client for block in BLOCKS} == {"", *CLIENTS.values()}


@pytest.mark.parametrize("command", CURL, ids=lambda command: f"line {command.line}")
def test_a_command_writes_what_is_shown(url: str, command: Command) -> None:
    """The same fields and the same text, or, with a model that is not here, an answer."""
    words = [word.replace(ADDRESS, url).replace("$INGOT_API_KEY", "none") for word in command.words]
    endless = "-sN" in words
    limit = ["--max-time", "1"] if endless else []
    done = subprocess.run([*words, *limit], capture_output=True, text=True, timeout=30, env={**os.environ})
    assert done.returncode == (28 if endless else 0), done.stderr
    if endless:
        assert done.stdout.splitlines()[1] == command.shown.splitlines()[1]
        assert keys(command.shown) <= keys(done.stdout)
        return
    answer = json.loads(done.stdout)
    assert command.shown.startswith('{"error"') == bool(answer.get("error"))
    if OTHER not in command.shown:
        assert keys(command.shown) <= keys(done.stdout)
        assert all(text in done.stdout for text in said(command.shown))


@pytest.mark.parametrize("block", PYTHON, ids=lambda block: f"line {block.line}")
def test_a_program_prints_an_answer(url: str, block: Block) -> None:
    program = block.asking(url)
    names: dict[str, Any] = {"get_weather": lambda city="": f"It is sunny in {city}."}
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(compile(program, f"{MANUAL.name}, line {block.line}", "exec"), names)
    assert printed.getvalue().strip()
    if "embeddings.create" in block.text:
        assert int(printed.getvalue()) == HIDDEN_SIZE
    elif OTHER not in block.text:
        assert printed.getvalue().startswith("Sealed means")


@pytest.mark.parametrize("block", JSON, ids=lambda block: f"line {block.line}")
def test_an_error_has_the_shape_of_its_api(block: Block) -> None:
    shown = json.loads(block.text)
    msgspec.convert(shown, AnthropicError if "request_id" in shown else Error)


@pytest.mark.parametrize("block", CONFIGURED, ids=lambda block: f"{block.language}, line {block.line}")
def test_settings_of_a_program_lead_it_to_answers(url: str, block: Block) -> None:
    """Its address has the model that it names, and the API that it calls."""
    reads: dict[str, Callable[[str], Any]] = {"toml": tomllib.loads, "yaml": yaml.safe_load, "json": json.loads}
    assert reads[block.language](block.text)
    setting, path = SETTINGS[block.language]
    found = re.search(rf'{setting}"?([^"\s]+)', block.asking(url))
    assert found is not None
    _, listed = fetch(f"{found[1]}/models")
    assert listed["data"][0]["id"] == SERVED
    assert SERVED in block.asking(url)
    asked = {"input": "hi"} if path == "/responses" else {"messages": [{"role": "user", "content": "hi"}]}
    status, answer = fetch(f"{found[1]}{path}", {"model": SERVED, **asked})
    assert status == 200, answer


def test_an_address_in_the_environment_is_one_of_an_api(url: str) -> None:
    exported = [
        word.split("=", 1) for command in COMMANDS if command.words[0] == "export" for word in command.words[1:]
    ]
    addresses = {name: value.replace(ADDRESS, url) for name, value in exported if value.startswith(ADDRESS)}
    assert addresses.keys() == {"ANTHROPIC_BASE_URL", "OPENAI_API_BASE_URL"}
    for name, address in addresses.items():
        assert fetch(f"{address}{'/v1' if name.startswith('ANTHROPIC') else ''}/models")[0] == 200
