"""Calls that a grammar has enforced: whole, and cut off anywhere, in whatever pieces they come."""

from __future__ import annotations

import json
import random

import pytest

from appliance.serving.parsers.base import Tool
from appliance.serving.parsers.listed import LISTED
from tests.parsers.parsing import cuts, fragments_of, put_together

BOTH = (Tool("f"), Tool("g"))
TWO = '[\n{"name": "f", "arguments": {"a": [1, "]"]}},\n {"name": "g", "arguments": {}}]'


def test_a_whole_answer_is_its_calls() -> None:
    assert put_together(LISTED.parser(BOTH), list(TWO)).calls == (("f", '{"a": [1, "]"]}', ""), ("g", "{}", ""))


@pytest.mark.parametrize("tools", [BOTH, BOTH[:1]], ids=["of two tools", "of one tool"])
def test_an_answer_that_is_cut_off_has_no_content(tools: tuple[Tool, ...]) -> None:
    """It has the calls whose names are known, the last of them with the arguments that have come. Where there is one
    tool, the name of the first call is known before it is written."""
    only_tool = len(tools) == 1
    named, begun = TWO.index('"f"') + len('"f"'), TWO.index('{"a"')
    second = TWO.index('"g"') + len('"g"')
    for end in range(1, len(TWO)):
        text = TWO[:end]
        answer = put_together(LISTED.parser(tools), [text])
        assert answer == put_together(LISTED.parser(tools), list(text)), text
        assert answer.content == "", text
        names = [name for name, _, _ in answer.calls]
        assert names == ["f"] * (only_tool or end >= named) + ["g"] * (end >= second), text
        if names == ["f"]:
            arguments = answer.calls[0][1]
            whole = '{"a": [1, "]"]}'
            assert arguments == whole[: max(0, end - begun)], text


def test_any_split_gives_the_result_of_the_whole() -> None:
    """Whatever comes, though a grammar lets nothing else through."""
    for seed in range(400):
        choose = random.Random(seed)
        text = "[" + fragments_of("hermes", choose)
        whole = put_together(LISTED.parser(BOTH), [text])
        assert put_together(LISTED.parser(BOTH), list(text)) == whole, text
        assert put_together(LISTED.parser(BOTH), list(cuts(text, choose))) == whole, text


def test_before_the_first_character_there_is_no_call() -> None:
    """A model may spend all its tokens on what it thinks."""
    assert put_together(LISTED.parser(BOTH[:1]), []).calls == ()


def test_names_as_json_writes_them() -> None:
    name = 'quo"te'
    text = f'[{{"name": {json.dumps(name)}, "arguments": '
    assert put_together(LISTED.parser(BOTH), [text]).calls == ((name, "", ""),)
