"""Calls of strict tools, where the model decides whether to call: what a grammar lets through, the parser reads as
calls whose arguments fit, and what models write as it should be goes through."""

from __future__ import annotations

import json
import random
from typing import Any

import jsonschema
import numpy as np
import pytest
from llguidance import LLMatcher, LLTokenizer
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

from appliance.checkpoint.call_grammar import FreeText, Thought, calls_in_text
from appliance.checkpoint.grammar import check
from appliance.engine.grammar import Constraint
from appliance.serving.parsers.base import Tool
from appliance.serving.parsers.registry import FORMATS
from tests.parsers.parsing import put_together

SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        "city": {"type": "string"},
        "kind": {"$ref": "#/$defs/Kind"},
        "days": {"type": "integer", "minimum": 1, "maximum": 30},
        "where": {"anyOf": [{"$ref": "#/$defs/Place"}, {"type": "null"}]},
        "code": {"type": ["string", "null"], "maxLength": 3, "minLength": 2},
        "flags": {"type": "array", "items": {"type": "boolean"}, "maxItems": 2},
    },
    "required": ["city", "kind", "days", "where", "code"],
    "additionalProperties": False,
    "$defs": {
        "Kind": {"type": "string", "enum": ["sun", "rain"], "title": "Kind"},
        "Place": {"type": "object", "properties": {"x": {"type": "number"}}, "required": ["x"],
                  "additionalProperties": False},
    },
}  # fmt: skip
TOOLS = (Tool("look", parameters=SCHEMA, strict=True), Tool("any.thing"))
ONE: dict[str, Any] = {"type": "object", "required": ["x"], "additionalProperties": False}
ENDS = ("</parameter>", "</arg_value>", "</｜DSML｜parameter>")
ARGUMENTS = {"city": "Rome", "kind": "sun", "days": 3, "where": {"x": 1.5}, "code": "ab"}
BOUND = sorted(name for name, format_ in FORMATS.items() if format_.shapes is not None)
SPECIAL = (
    "<tool_call>", "</tool_call>", "<minimax:tool_call>", "</minimax:tool_call>", "<arg_key>", "</arg_key>",
    "<arg_value>", "</arg_value>", "｜DSML｜", "[TOOL_CALLS]", "[ARGS]", "[CALL_ID]",
    "<TOOLCALL>", "</TOOLCALL>", "<|tool_call|>",
    "<|/tool_call|>", "<function_call>", "<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>", "<｜tool▁call▁begin｜>",
    "<｜tool▁call▁end｜>", "<｜tool▁sep｜>", "<|tool_calls_section_begin|>", "<|tool_calls_section_end|>",
    "<|tool_call_begin|>", "<|tool_call_argument_begin|>", "<|tool_call_end|>", "<think>", "</think>", "<|other|>",
)  # fmt: skip


def tag(key: str, value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)


def written(name: str, tool: str, arguments: dict[str, Any]) -> str:
    """A call as the model of this format writes it."""
    text, items = json.dumps(arguments, ensure_ascii=False), arguments.items()
    call = f'{{"name": "{tool}", "arguments": {text}}}'
    match name:
        case "hermes":
            return f"<tool_call>\n{call}\n</tool_call>"
        case "nemotron":
            return f"<TOOLCALL>[{call}]</TOOLCALL>"
        case "granite":
            return f"<|tool_call|>[{call}]"
        case "phi-4-mini":
            return f"<|tool_call|>[{call}]<|/tool_call|>"
        case "mistral":
            return f"[TOOL_CALLS]{tool}[ARGS]{text}"
        case "deepseek-v3":
            return (
                f"<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>{tool}\n```json\n{text}\n```"
                "<｜tool▁call▁end｜><｜tool▁calls▁end｜>"
            )
        case "deepseek-v3.1":
            return (
                f"<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>{tool}<｜tool▁sep｜>{text}<｜tool▁call▁end｜>"
                "<｜tool▁calls▁end｜>"
            )
        case "kimi-k2":
            return (
                f"<|tool_calls_section_begin|><|tool_call_begin|>functions.{tool}:0<|tool_call_argument_begin|>{text}"
                "<|tool_call_end|><|tool_calls_section_end|>"
            )
        case "qwen3-coder":
            values = "".join(f"<parameter={key}>\n{tag(key, value)}\n</parameter>\n" for key, value in items)
            return f"<tool_call>\n<function={tool}>\n{values}</function>\n</tool_call>"
        case "minimax-m2":
            values = "".join(f'<parameter name="{key}">{tag(key, value)}</parameter>\n' for key, value in items)
            return f'<minimax:tool_call>\n<invoke name="{tool}">\n{values}</invoke>\n</minimax:tool_call>'
        case "glm-4.5":
            values = "".join(
                f"<arg_key>{key}</arg_key>\n<arg_value>{tag(key, value)}</arg_value>\n" for key, value in items
            )
            return f"<tool_call>{tool}\n{values}</tool_call>"
        case "dsml":
            values = "".join(
                f'<｜DSML｜parameter name="{key}" string="{str(isinstance(value, str)).lower()}">{tag(key, value)}'
                "</｜DSML｜parameter>\n"
                for key, value in items
            )
            invoke = f'<｜DSML｜invoke name="{tool}">\n{values}</｜DSML｜invoke>\n'
            return f"<｜DSML｜function_calls>\n{invoke}</｜DSML｜function_calls>"
    raise AssertionError(name)


class Model:
    """What the answers of a model of one format keep to, whose markers are special tokens, or text."""

    def __init__(
        self, name: str, *, special: bool, thoughts: tuple[Thought, ...] = (), tools: tuple[Tool, ...] = TOOLS
    ) -> None:
        backend = Tokenizer(
            models.BPE({text: at for at, text in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}, [])
        )
        backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
        backend.decoder = decoders.ByteLevel()
        backend.add_special_tokens([AddedToken("</s>", special=True)])
        if special:
            backend.add_special_tokens([AddedToken(text, special=True) for text in SPECIAL])
        self.backend = backend
        self._tokenizer = LLTokenizer(backend.to_str(), eos_token=[256])
        ids = {text: backend.token_to_id(text) for text in SPECIAL} if special else {}
        shapes = FORMATS[name].shapes
        assert shapes is not None
        self._grammar = calls_in_text(FreeText(shapes(tools), ids, thoughts))

    def begin(self) -> LLMatcher:
        matcher = LLMatcher(self._tokenizer, self._grammar, log_level=0)
        check(matcher)
        return matcher

    def takes(self, text: str) -> bool:
        """Whether it may be a whole answer."""
        matcher, tokens = self.begin(), self.backend.encode(text).ids
        return matcher.try_consume_tokens(tokens) == len(tokens) and matcher.is_accepting()


@pytest.fixture(scope="module")
def model():
    known: dict[tuple[str, bool], Model] = {}

    def make(name: str, special: bool) -> Model:
        if (name, special) not in known:
            known[name, special] = Model(name, special=special)
        return known[name, special]

    return make


@pytest.mark.parametrize("special", [False, True], ids=["text", "special"])
@pytest.mark.parametrize("name", BOUND)
def test_what_models_write_goes_through(model, name, special):
    """Calls beside text and beside each other, of tools that are strict and of others."""
    bound = model(name, special)
    look, free = written(name, "look", ARGUMENTS), written(name, "any.thing", {"q": "1"})
    for text in ("", "Hello <b>&amp;</b> {", look, free, f"Well.\n\n{look}", f"{look}\n{free}", f"{free}{look}"):
        assert bound.takes(text), text
    nothing = written(name, "look", {**ARGUMENTS, "where": None, "code": None, "flags": [True]})
    assert bound.takes(nothing)
    parsed = put_together(FORMATS[name].parser(TOOLS), [look])
    assert [(call, json.loads(arguments)) for call, arguments, _ in parsed.calls] == [("look", ARGUMENTS)]


@pytest.mark.parametrize("special", [False, True], ids=["text", "special"])
@pytest.mark.parametrize(
    "changed",
    [{"kind": "snow"}, {"days": 31}, {"days": "3"}, {"where": {"y": 1}}, {"code": "abcd"}, {"code": "a"}, {"more": 1}],
    ids=str,
)
@pytest.mark.parametrize("name", BOUND)
def test_arguments_that_do_not_fit_are_never_written(model, name, special, changed):
    tags = name in ("qwen3-coder", "minimax-m2", "glm-4.5")
    if tags and changed in ({"days": "3"},):
        return  # the same text as the number
    assert not model(name, special).takes(written(name, "look", ARGUMENTS | changed))


@pytest.mark.parametrize("special", [False, True], ids=["text", "special"])
@pytest.mark.parametrize("name", BOUND)
def test_nothing_else_follows_the_marker_of_a_call(model, name, special):
    bound = model(name, special)
    missing = {key: value for key, value in ARGUMENTS.items() if key != "days"}
    call = written(name, "look", ARGUMENTS)
    for text in (written(name, "unknown", {}), written(name, "look", missing), call[: len(call) // 2]):
        assert not bound.takes(text), text
        assert not bound.takes(f"{call} {text}"), text


@pytest.mark.parametrize("special", [False, True], ids=["text", "special"])
@pytest.mark.parametrize("name", ["hermes", "qwen3-coder", "glm-4.5"])
def test_reasoning_may_speak_of_markers(name, special):
    thought = f"<think>I write {'<tool_call>' if not special else 'it'} now"
    call = written(name, "look", ARGUMENTS)
    model = Model(name, special=special, thoughts=(Thought("<think>", "</think>"),))
    opened = Model(name, special=special, thoughts=(Thought(None, "</think>"),))
    for bound, text in ((model, thought), (opened, thought.removeprefix("<think>"))):
        assert bound.takes(text)
        assert bound.takes(f"{text}</think>{call}")
        assert not bound.takes(f"{text}</think><tool_call>no")


@pytest.mark.parametrize("special", [False, True], ids=["text", "special"])
@pytest.mark.parametrize("name", BOUND)
def test_whatever_is_written_fits(model, name, special):
    """Tokens drawn at random from those that the grammar allows, behind the beginning of a call."""
    bound, rng = model(name, special), random.Random(f"{name}{special}")
    call = written(name, "look", ARGUMENTS)
    start = call[: call.index("look") + len("look")]
    closing = [bound.backend.token_to_id(character) for character in "\"<>}]'1"]
    ended = 0
    for _ in range(30):
        if ended == 3:
            break
        matcher = bound.begin()
        assert matcher.consume_tokens(bound.backend.encode(start).ids)
        constraint = Constraint(matcher, -(-len(bound.backend.get_vocab()) // 32))
        tokens = bound.backend.encode(start).ids
        for _step in range(900):
            words = np.zeros(constraint.num_words, dtype=np.int32)
            constraint.fill(words)
            allowed = np.flatnonzero(np.unpackbits(words.view(np.uint8), bitorder="little")).tolist()
            if 256 in allowed:
                break
            if rng.random() < 0.1:
                end = bound.backend.encode(rng.choice(ENDS)).ids
                tokens += end[: matcher.try_consume_tokens(end)]
                continue
            # What closes something is likely, or strings would never end.
            likely = [token for token in allowed if token > 256 or token in closing] if rng.random() < 0.8 else []
            token = rng.choice(likely or allowed)
            constraint.accept(token)
            assert not constraint.error
            tokens.append(token)
        else:
            continue
        text = bound.backend.decode(tokens, skip_special_tokens=False)
        parsed = put_together(FORMATS[name].parser(TOOLS), [text])
        assert [call[0] for call in parsed.calls][:1] == ["look"], text
        assert not parsed.content.strip(), text
        jsonschema.validate(json.loads(parsed.calls[0][1]), SCHEMA)
        ended += 1
    assert ended


NULLABLE = {"type": ["string", "null"], "enum": ["a", "b", None]}


@pytest.mark.parametrize("name", BOUND)
@pytest.mark.parametrize(
    ("schema", "good", "bad"),
    [
        (NULLABLE, ["a", "b", None], ["c", '"a"']),
        ({"enum": ["a", "b"]}, ["a"], ["c", '"a"']),
        ({"type": ["integer", "null"], "enum": [1, None]}, [1, None], [2]),
        ({"type": ["string", "boolean"], "enum": ["no", True]}, ["no", True], [False, "maybe"]),
    ],
    ids=["nullable", "texts", "numbers", "mixed"],
)
def test_listed_values_are_of_the_types_that_the_schema_allows(name, schema, good, bad):
    tools = (Tool("look", parameters={**ONE, "properties": {"x": schema}}, strict=True),)
    model = Model(name, special=True, tools=tools)
    for value in good:
        assert model.takes(written(name, "look", {"x": value})), value
        (call,) = put_together(FORMATS[name].parser(tools), [written(name, "look", {"x": value})]).calls
        assert json.loads(call[1]) == {"x": value}
    for value in bad:
        assert not model.takes(written(name, "look", {"x": value})), value


@pytest.mark.parametrize("name", BOUND)
@pytest.mark.parametrize("reference", ["#", "#/properties/y"])
def test_a_schema_that_refers_to_its_own_root_keeps_its_meaning(name, reference):
    """Or its tool stays free, where a grammar of each parameter cannot say it."""
    schema = {**ONE, "properties": {"x": {"type": "array", "items": {"$ref": reference}}, "y": {"type": "integer"}}}
    model = Model(name, special=True, tools=(Tool("look", parameters=schema, strict=True),))
    assert model.takes(written(name, "look", {"x": [{"x": []}] if reference == "#" else [1]}))


@pytest.mark.parametrize("name", BOUND)
def test_tools_that_are_not_strict_keep_the_names_of_their_parameters(name):
    tools = (TOOLS[0], Tool("free", parameters={"type": "object"}))
    model = Model(name, special=True, tools=tools)
    assert model.takes(written(name, "free", {"file name": "x", "größe": "y"}))
