"""The examples of docs/api.md, against the bundled model: each block is run as its language and its first words say."""

from __future__ import annotations

import contextlib
import io
import json
import os
import re
import shlex
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import pytest

from appliance.serving.anthropic.answers import AnthropicError
from appliance.serving.openapi.answers import Error
from tests.running import engine, fetch, wait_for

MANUAL = Path(__file__).parents[2] / "docs" / "api.md"
ADDRESS = "http://127.0.0.1:8000"
SERVED = "ingot-guide"
HIDDEN_SIZE = 256
OTHER = "qwen3-8b"  # in examples that a larger model answers better


class Block(NamedTuple):
    line: int
    language: str
    text: str


class Command(NamedTuple):
    line: int
    words: list[str]
    shown: str
    """What the manual shows it to write."""


def blocks() -> list[Block]:
    text = MANUAL.read_text()
    found = re.finditer(r"^```(\w+)\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    return [Block(text.count("\n", 0, each.start()) + 1, each[1], each[2]) for each in found]


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
PYTHON = [block for block in BLOCKS if block.language == "python"]
JSON = [block for block in BLOCKS if block.language == "json"]


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
    assert {block.language for block in BLOCKS} == {"console", "python", "json"}
    assert {command.words[0] for command in COMMANDS} == {"curl", "export", "claude"}


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
    program = block.text.replace(ADDRESS, url).replace(OTHER, SERVED)
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
