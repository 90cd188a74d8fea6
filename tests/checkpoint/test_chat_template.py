"""Chat templates: rendered as transformers renders them, and unable to reach out, run for ever or fill the memory."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest

from appliance.checkpoint import CheckpointError, template_sandbox
from appliance.checkpoint.chat_template import ChatTemplate, TemplateError, flatten
from appliance.checkpoint.template_sandbox import MAX_OUTPUT
from tests.tiny import write_checkpoint

TALK = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": "Say <b> & 'hi' in Zürich 😀"},
    {"role": "assistant", "content": "hi"},
    {"role": "user", "content": "Again"},
]
TOOLS = [{"type": "function", "function": {"name": "clock", "parameters": {"type": "object", "properties": {}}}}]

# The shapes of templates in use: Llama 3, Mistral, ChatML, and one with tools, macros, namespaces and loop controls.
TEMPLATES = {
    "llama-3": "{{ bos_token }}{% for m in messages %}{{ '<|start_header_id|>' + m['role'] + '<|end_header_id|>\\n\\n' "
    "+ m['content'] | trim + '<|eot_id|>' }}{% endfor %}{% if add_generation_prompt %}"
    "{{ '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}{% endif %}",
    "mistral": "{{ bos_token }}{% if messages[0]['role'] == 'system' %}{% set s = messages[0]['content'] %}"
    "{% set loop_messages = messages[1:] %}{% else %}{% set loop_messages = messages %}{% endif %}"
    "{% for m in loop_messages %}{% if (m['role'] == 'user') != (loop.index0 % 2 == 0) %}"
    "{{ raise_exception('Roles must alternate') }}{% endif %}{% if m['role'] == 'user' %}"
    "{{ '[INST] ' + (s + '\\n\\n' if loop.first and s is defined else '') + m['content'] + ' [/INST]' }}"
    "{% else %}{{ ' ' + m['content'] + eos_token }}{% endif %}{% endfor %}",
    "chatml": "{%- for m in messages %}\n    {{- '<|im_start|>' ~ m.role ~ '\\n' ~ m.content ~ '<|im_end|>\\n' }}\n"
    "{%- endfor %}\n{%- if add_generation_prompt %}\n    {{- '<|im_start|>assistant\\n' }}\n{%- endif %}\n",
    "tools": "{% macro show(t) %}{{ t.function.name }}: {{ t | tojson(indent=2) }}\n{% endmacro %}"
    "{% set ns = namespace(n=0) %}{% for t in tools or [] %}{{ show(t) }}{% endfor %}"
    "{% for m in messages if m.role != 'system' %}{% if ns.n > 1 %}{% break %}{% endif %}{% set ns.n = ns.n + 1 %}"
    "{{ m | tojson }}{{ m.content.split(' ')[0].replace('S', 's') | upper }}{% generation %}{{ '%d' % ns.n }}"
    "{% endgeneration %}\n{% endfor %}{{ [1, 2] | join('-') }}{{ strftime_now('%Y') | length }}",
}


@pytest.mark.parametrize("text", TEMPLATES.values(), ids=TEMPLATES)
@pytest.mark.parametrize("add_generation_prompt", [True, False])
@pytest.mark.parametrize("tools", [None, TOOLS])
def test_as_transformers_renders_it(text: str, add_generation_prompt: bool, tools: list[dict[str, Any]] | None) -> None:
    """Character by character, with transformers' own function as the oracle."""
    from transformers.utils.chat_template_utils import render_jinja_template

    tokens = {"bos_token": "<s>", "eos_token": "</s>"}
    ours = ChatTemplate(text, "test", tokens).render(TALK, add_generation_prompt=add_generation_prompt, tools=tools)
    theirs, _ = render_jinja_template(
        conversations=[TALK], tools=tools, chat_template=text, add_generation_prompt=add_generation_prompt, **tokens
    )
    assert ours == theirs[0]


def test_content_parts_are_flattened() -> None:
    """A list of text parts is one text; other parts are refused by number and type."""
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    assert flatten({"role": "user", "content": parts}) == {"role": "user", "content": "ab"}
    with pytest.raises(TemplateError, match=r"content\[1\] is of type 'image_url'"):
        flatten({"role": "user", "content": [parts[0], {"type": "image_url", "image_url": {}}]})
    with pytest.raises(TemplateError, match=r"content\[0\]"):
        flatten({"role": "user", "content": ["a"]})


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("{{ raise_exception('no system role') }}", "no system role"),
        ("a\n\n{{ messages[0].content + 1 }}", "line 3"),
        ("{{ messages[9]['role'] }}", "no element 9"),
        ("{{ 1 / 0 }}", "division by zero"),
        ("{% include 'secret' %}", "no loader"),
        ("{{ ''.__class__.__mro__[1].__subclasses__() }}", "unsafe"),
        ("{{ raise_exception.__globals__['os'] }}", "unsafe"),
        ("{{ messages.append(1) }}", "unsafe"),
        ("{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}", "recursion"),
        ("{% for a in range(100000) %}{% for b in range(100000) %}{% endfor %}{% endfor %}", "steps|seconds"),
        ("{% for a in range(99999) %}{% for b in range(99999) if false %}{% endfor %}{% endfor %}", "steps|seconds"),
        ("{% for a in range(100000) %}{% set b = range(100000) | sum %}{% endfor %}", "seconds"),
        ("{{ range(10 ** 12) }}", "too big"),
        ("{{ 'a' * 10 ** 12 }}", "characters"),
        ("{{ [0] * 10 ** 12 }}", "characters"),
        ("{{ 9 ** 9999999999 }}", "number"),
        ("{% set ns = namespace(n=9) %}{% for i in range(99) %}{% set ns.n = ns.n * ns.n %}{% endfor %}", "number"),
        (
            "{% set ns = namespace(s='ab') %}{% for i in range(60) %}{% set ns.s = ns.s + ns.s %}{% endfor %}",
            "characters",
        ),
        (
            "{% set ns = namespace(s='ab') %}{% for i in range(60) %}{% set ns.s = ns.s ~ ns.s %}{% endfor %}",
            "characters",
        ),
        ("{% for i in range(1000) %}{{ 'x' * 100000 }}{% endfor %}", "characters"),
        ("{{ 'x' | center(10 ** 10) }}", "pads"),
        ("{{ 'x'.ljust(10 ** 10) }}", "pads"),
        ("{{ '%99999999999d' % 1 }}", "width"),
        ("{{ '%99999999999d' | format(1) }}", "width"),
        ("{{ 'a'.replace('a', 'b' * 10000).replace('b', 'c' * 10000) }}", "characters"),
        ("{{ ('a' * 10000) | replace('a', 'c' * 10000) }}", "characters"),
        ("{{ (['a' * 10000] * 10000) | join }}", "characters"),
        ("{{ messages | tojson(indent=10 ** 9) }}", "indents"),
        ("{% if %}", "line 1"),
        ("a\n{% for %}", "line 2"),
        ("{% frobnicate %}", "unknown tag"),
        ("{{ __step }}", "reserved"),
        ("{{ " + "(" * 5000 + "1" + ")" * 5000 + " }}", "cannot be compiled"),
    ],
)
def test_a_bad_template_is_refused_in_words_and_time(text: str, said: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """It can neither reach out, nor run for ever, nor make gigabytes; the error names template and line."""
    monkeypatch.setattr(template_sandbox, "MAX_SECONDS", 1.0)
    started = time.process_time()
    with pytest.raises(TemplateError, match=said) as caught:
        ChatTemplate(text, "the-template", {}).render(TALK)
    assert "the-template" in str(caught.value) or "no system role" in str(caught.value)
    assert time.process_time() - started < 10


def test_a_client_cannot_lift_the_limits() -> None:
    """Variables of a request are the template's to read, and change nothing of the sandbox."""
    template = ChatTemplate("{{ x }}{% for i in range(3) %}{{ i }}{% endfor %}", "t", {})
    assert template.render(TALK, x=1, __step=None) == "1012"


def test_an_output_below_the_limit_is_given_whole() -> None:
    """The bound is far from any real prompt."""
    content = "x" * (MAX_OUTPUT // 4)
    rendered = ChatTemplate("{% for m in messages %}{{ m.content }}{% endfor %}", "t", {}).render(
        [{"role": "user", "content": content}]
    )
    assert rendered == content


def test_a_template_file_is_read_before_the_settings(tmp_path: Path) -> None:
    """chat_template.jinja, then tokenizer_config.json's text, then its `default` of several; else there is none."""
    folder = write_checkpoint(tmp_path / "m")
    path = folder / "tokenizer_config.json"
    given = json.loads(path.read_text())

    def rendered() -> str | None:
        template = ChatTemplate.load(folder)
        return template.render(TALK[3:]) if template else None

    assert rendered() == "<|user|>Again</s><|assistant|>"
    (folder / "chat_template.jinja").write_text("from the file {{ bos_token }}")
    assert rendered() == "from the file <s>"
    (folder / "chat_template.jinja").unlink()
    several = [{"name": "rag", "template": "no"}, {"name": "default", "template": "{{ eos_token }}"}]
    path.write_text(json.dumps(given | {"chat_template": several, "eos_token": {"content": "<e>"}}))
    assert rendered() == "<e>"
    path.write_text(json.dumps({}))
    assert rendered() is None
    path.unlink()
    assert rendered() is None


@pytest.mark.parametrize("value", ["{% if %}", 5, {"a": 1}, "x" * (1 << 21)])
def test_a_folder_with_a_bad_template_is_a_checkpoint_error(tmp_path: Path, value: object) -> None:
    """Found when the folder is checked, not when the first message comes."""
    folder = write_checkpoint(tmp_path / "m")
    (folder / "tokenizer_config.json").write_text(json.dumps({"chat_template": value}))
    with pytest.raises(CheckpointError) as caught:
        ChatTemplate.load(folder)
    assert caught.value.id == "chat-template-invalid"


@pytest.mark.parametrize(
    ("text", "variables"),
    [
        ("{{ tools }}{% for m in messages %}{{ m }}{% endfor %}", {"tools", "messages"}),
        ("{% if x is defined %}{% set tools = x %}{% endif %}{{ tools }}", {"x", "tools"}),
        ("{% if not thinking is defined %}{% set thinking = false %}{% endif %}{{ thinking }}", {"thinking"}),
        ("{% set thinking = thinking | default(true) %}{{ thinking }}", {"thinking"}),
        ("{% set tools = 1 %}{{ tools }}", set()),
        ("{% macro show(tools) %}{{ tools }}{% endmacro %}{{ show(1) }}", set()),
    ],
)
def test_the_variables_that_a_template_reads(text: str, variables: set[str]) -> None:
    """Also those that it sets where they are missing, as published templates do."""
    assert ChatTemplate(text, "test", {}).variables == variables


def test_templates_that_want_short_ids() -> None:
    """Mistral's: they reject all others."""
    text = "{% if call.id is not defined or call.id|length != 9 %}{{ raise_exception('9!') }}{% endif %}"
    assert ChatTemplate(text, "test", {}).wants_short_ids
    assert not ChatTemplate("{{ call.id | length }}", "test", {}).wants_short_ids
