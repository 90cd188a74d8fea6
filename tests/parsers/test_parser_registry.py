"""Which format is chosen: by the chat template first, by the family second."""

from __future__ import annotations

import pytest

from appliance.serving.parsers.registry import FORMATS, REASONING, format_for, reasoning_for

# What tells the public templates of each kind apart.
TEMPLATES = [
    ('{{- "<tool_call>\\n" }}{"name": ... {{ "</tool_call>" }}', "hermes", None),
    ("<tool_call>\n{%- if '</think>' in content %}", "hermes", "think"),
    ("<tool_call>\n<function=' + name + '>\n<parameter=' <think>\n</think>", "qwen3-coder", "think"),
    ("{{ '<tool_call>' + name }}<arg_key>{{ k }}</arg_key><think></think>", "glm-4.5", "think"),
    ('Respond in the format {"name": function name, "parameters": dictionary} <|python_tag|>', "llama3-json", None),
    ('Respond in the format {"name": function name, "parameters": dictionary} <|header_start|>', "llama3-json", None),
    ("Use exact format: [func_name1(param1=value1), func_name2(...)]", "pythonic", None),
    ("[AVAILABLE_TOOLS] [TOOL_CALLS] [", "mistral", None),
    ("[TOOL_CALLS] [ARGS] [THINK] [/THINK]", "mistral", "mistral"),
    (
        "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>' + type + '<｜tool▁sep｜>' + name + '\\n```json",
        "deepseek-v3",
        None,
    ),
    (
        "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>' + name + '<｜tool▁sep｜>' + args <think></think>",
        "deepseek-v3.1",
        "think",
    ),
    ("<｜DSML｜function_calls> <think></think>", "dsml", "dsml"),
    ("<minimax:tool_call> <invoke name= <think></think>", "minimax-m2", "minimax-m2"),
    ("<|start|>assistant<|channel|>analysis<|message|>", "gpt-oss", "gpt-oss"),
    ("<|tool_calls_section_begin|><|tool_call_begin|>", "kimi-k2", None),
    ("<|tool_calls_section_begin|><think></think>", "kimi-k2", "kimi-k2"),
    ("<|im_assistant|>assistant ◁think▷", None, "kimi"),
    ("<TOOLCALL>[ </TOOLCALL> <think></think>", "nemotron", "think"),
    ("<|start_of_role|>available_tools <|tool_call|> Here is my thought process:", "granite", "granite"),
    ("<|tool|>' + tools + '<|/tool|>", "phi-4-mini", None),
    ("formatted as functools[{", "phi-4-mini", None),
    ("<start_function_call>call:", "gemma", None),
    ("<|tool_call>call:' + name + '{' ... '}<tool_call|>' <|channel>thought\n <channel|>", "gemma", "gemma4"),
]


@pytest.mark.parametrize(("template", "tools", "reasoning"), TEMPLATES)
def test_the_template_says_which(template: str, tools: str | None, reasoning: str | None) -> None:
    chosen, thinking = format_for("", template), reasoning_for("", template)
    assert (chosen.name if chosen else None) == tools
    assert (thinking.name if thinking else None) == reasoning


@pytest.mark.parametrize(
    ("family", "tools", "reasoning"),
    [
        ("llama", "llama3-json", None),
        ("llama4", "pythonic", None),
        ("llama4_text", "pythonic", None),
        ("mistral", "mistral", None),
        ("mistral3", "mistral", None),
        ("mixtral", "mistral", None),
        ("qwen2", "hermes", None),
        ("qwen3", "hermes", "think"),
        ("qwen3_moe", "hermes", "think"),
        ("qwen3_next", "hermes", "think"),
        ("qwen3_5_moe", "qwen3-coder", "think"),
        ("deepseek_v3", "deepseek-v3", None),
        ("deepseek_v32", "dsml", "dsml"),
        ("deepseek_v4", "dsml", "dsml"),
        ("minimax_m2", "minimax-m2", "minimax-m2"),
        ("glm4_moe", "glm-4.5", "think"),
        ("glm_moe_dsa", "glm-4.5", "think"),
        ("gpt_oss", "gpt-oss", "gpt-oss"),
        ("gemma3_text", "gemma", None),
        ("gemma4", "gemma", "gemma4"),
        ("kimi_k2", "kimi-k2", None),
        ("nemotron_h", "nemotron", None),
        ("granite", "granite", None),
        ("granitemoehybrid", "hermes", None),
        ("phi3", "phi-4-mini", None),
        ("unheard_of", None, None),
    ],
)
@pytest.mark.parametrize("template", [None, "", "{{ messages[0].content }}"])
def test_without_a_word_of_the_template_the_family_does(
    family: str, template: str | None, tools: str | None, reasoning: str | None
) -> None:
    chosen, thinking = format_for(family, template), reasoning_for(family, template)
    assert (chosen.name if chosen else None) == tools
    assert (thinking.name if thinking else None) == reasoning


def test_the_template_counts_more_than_the_family() -> None:
    assert format_for("qwen3_moe", "<tool_call>\n<function=").name == "qwen3-coder"


def test_each_name_is_its_own() -> None:
    assert all(FORMATS[name].name == name for name in FORMATS)
    assert all(REASONING[name].name == name for name in REASONING)
