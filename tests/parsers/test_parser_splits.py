"""Whatever comes, and however it is cut: the same answer, no error, and nothing lost."""

from __future__ import annotations

import random
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from appliance.serving.parsers.plain import PlainParser
from appliance.serving.parsers.registry import FORMATS, REASONING
from tests.parsers.parsing import FRAGMENTS, TEXT, TOOLS, cuts, fragments_of, put_together

ROUNDS = 400
REASONING_FRAGMENTS = [
    "<think>", "</think>", "<think", "[THINK]", "[/THINK]", "◁think▷", "◁/think▷", "<|channel>thought\n", "<channel|>",
    "Here is my thought process:", "Here is my response:", "<tool_call>", '<minimax:tool_call><invoke name="f">',
    "</invoke></minimax:tool_call>", "<｜DSML｜tool_calls>", '<｜DSML｜invoke name="f">', "</｜DSML｜invoke>",
    '<｜DSML｜toolcalls><｜DSML｜invoke name="g"></｜DSML｜invoke>', "<|tool_calls_section_begin|>", *TEXT,
]  # fmt: skip


def test_each_format_is_fuzzed() -> None:
    assert set(FRAGMENTS) == set(FORMATS)


@pytest.mark.parametrize("name", FORMATS)
def test_any_split_gives_the_result_of_the_whole(name: str) -> None:
    for seed in range(ROUNDS):
        choose = random.Random(seed)
        text = fragments_of(name, choose)
        whole = put_together(FORMATS[name].parser(TOOLS), [text])
        assert put_together(FORMATS[name].parser(TOOLS), list(text)) == whole, text
        pieces = list(cuts(text, choose))
        assert put_together(FORMATS[name].parser(TOOLS), pieces) == whole, pieces


@pytest.mark.parametrize("separate", [True, False])
@pytest.mark.parametrize("opened", [True, False])
@pytest.mark.parametrize("name", REASONING)
def test_any_split_of_reasoning_gives_the_result_of_the_whole(name: str, opened: bool, separate: bool) -> None:
    def parser():
        inner = FORMATS[inner_name].parser(TOOLS)
        return REASONING[name].parser(inner, opened=opened, separate=separate)

    for seed in range(ROUNDS // 4):
        choose = random.Random(seed)
        inner_name = choose.choice(list(FORMATS))
        pool = REASONING_FRAGMENTS + FRAGMENTS[inner_name] + FRAGMENTS["gpt-oss"]
        text = "".join(choose.choice(pool) for _ in range(choose.randint(1, 20)))
        whole = put_together(parser(), [text])
        assert put_together(parser(), list(text)) == whole, (inner_name, text)
        assert put_together(parser(), list(cuts(text, choose))) == whole, (inner_name, text)


@pytest.mark.parametrize("name", FORMATS)
@given(text=st.text(st.characters(codec="utf-8", exclude_characters="[{<`"), max_size=200))
def test_random_text_is_content_as_it_is(name: str, text: str) -> None:
    assert put_together(FORMATS[name].parser(TOOLS), [text]) == (text, (), "")


@pytest.mark.parametrize("name", REASONING)
@given(text=st.text(st.characters(codec="utf-8", exclude_characters="[<◁"), max_size=200))
def test_random_text_without_a_marker_passes_through_reasoning(name: str, text: str) -> None:
    assert put_together(REASONING[name].parser(PlainParser()), [text]) == (text, (), "")


@pytest.mark.parametrize("name", FORMATS)
def test_no_word_is_lost(name: str) -> None:
    """Each word, wherever it stands among the markers, is in the content, the reasoning, or a call. Left out is what
    counts as markup: names in a header of harmony, members of a call's object that are neither name nor arguments, and
    what the answer's end leaves of a key behind a call's name."""
    fragments = [
        fragment
        for fragment in FRAGMENTS[name]
        if not re.search(r'^"$|^"a"|^"l"|<\|start\|>$|<\|channel\|>$', fragment)
    ]
    for seed in range(ROUNDS):
        choose = random.Random(seed)
        words = iter(range(10**6))
        text = "".join(
            f" lost{next(words)}x " if choose.random() < 0.3 else choose.choice(fragments)
            for _ in range(choose.randint(1, 24))
        )
        answer = put_together(FORMATS[name].parser(TOOLS), [text])
        if answer.calls and not answer.calls[-1][1]:
            continue
        kept = f"{answer.content} {answer.reasoning} {answer.calls}"
        for word in re.findall("lost[0-9]+x", text):
            assert word in kept, (word, text, answer)
