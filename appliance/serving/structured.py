"""Structured output: what a request says about the form of its answer, as a grammar.

Understood are OpenAI's `response_format`, vLLM's `structured_outputs`, and the older `guided_*` fields.
"""

from __future__ import annotations

import asyncio
import json
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple

import msgspec

from appliance.checkpoint.call_grammar import FreeText, Thought
from appliance.serving.client_fields import DescriptiveFields
from appliance.serving.errors import ApiError, bad_request, missing
from appliance.serving.fields import shown

if TYPE_CHECKING:
    from appliance.checkpoint.model_config import ModelConfig
    from appliance.checkpoint.tokenizer import Tokenizer
    from appliance.serving.reading import ModelFormats
    from appliance.serving.tools import ToolUse

MAX_CHOICES: Final = 10_000
MAX_SCHEMA: Final = 1 << 20
"""Of characters, where a schema is given as text: it may hold spaces that its grammar does not."""
# Grammars that are known to be good are not compiled again; those used least recently are forgotten first.
KEPT: Final = 256
# So many are compiled at a time, that text can still be tokenised beside them.
AT_A_TIME: Final = 2

Thoughts = Sequence[tuple[str | None, str]]
"""As `ModelFormats.thoughts`."""


class JsonSchema(msgspec.Struct, frozen=True, kw_only=True):
    name: str | None = None
    description: str | None = None
    schema: Any = None
    strict: bool | None = None


class ResponseFormat(msgspec.Struct, frozen=True, kw_only=True):
    """`schema` stands for `json_schema.schema`, where the type is `json_object`, too: so llama.cpp's server and
    Together's have it."""

    type: Literal["text", "json_object", "json_schema"]
    json_schema: JsonSchema | None = None
    schema: Any = None


class StructuredFields(DescriptiveFields, frozen=True, kw_only=True):
    """At most one of its own may be given."""

    response_format: ResponseFormat | None = None
    structured_outputs: dict[str, Any] | None = None
    guided_json: str | dict[str, Any] | None = None
    guided_regex: str | None = None
    guided_choice: list[str] | None = None
    guided_grammar: str | None = None


class Form(NamedTuple):
    """The wanted form: `kind` is a function of `checkpoint.grammar` or `checkpoint.call_grammar`, and `param` names the
    field. `schemas` are those within it that the client wrote, each with its path, where that is not `param`; where
    `value` is a function, it makes the value of schemas that are known to be valid."""

    kind: str
    value: Any
    param: str
    schemas: Sequence[tuple[str, Any]] = ()


class CheckedGrammars:
    """Makes grammars of forms, and tries each once with `attempt`, which raises GrammarError. `tokenizer`: the model's,
    for answers behind thoughts."""

    def __init__(self, attempt: Callable[[str], object], tokenizer: Tokenizer | None = None) -> None:
        self._attempt = attempt
        self._tokenizer = tokenizer
        self._good: OrderedDict[str, None] = OrderedDict()
        self._turn = asyncio.Semaphore(AT_A_TIME)

    @classmethod
    def of_model(cls, folder: Path, config: ModelConfig, tokenizer: Tokenizer) -> CheckedGrammars:
        """They are compiled, to see whether the engine can."""
        from appliance.checkpoint.grammar import GrammarCompiler

        return cls(GrammarCompiler(folder, config.vocab_size, config.eos_token_ids).compile, tokenizer)

    async def check(self, form: Form, thoughts: Thoughts) -> str:
        """The grammar. Raises ApiError naming the field."""
        from appliance.checkpoint.grammar import GrammarError

        async with self._turn:
            try:
                *parts, grammar = await asyncio.to_thread(self._make, form, thoughts)
            except GrammarError as error:
                param, reason = await asyncio.to_thread(self._located, form, str(error))
                raise bad_request(f"{param} cannot be used: {reason.rstrip('.')}.", param, "invalid_grammar") from error
        for good in (*parts, grammar):
            self._good[good] = None
            self._good.move_to_end(good)
        while len(self._good) > KEPT:
            self._good.popitem(last=False)
        return grammar

    def _make(self, form: Form, thoughts: Thoughts) -> list[str]:
        """The grammar, behind those of schemas that had to be valid before it could be made."""
        from appliance.checkpoint import call_grammar
        from appliance.checkpoint import grammar as grammars

        of_calls = form.kind in ("enforced_calls", "calls_in_text")
        build: Callable[[Any], str] = getattr(call_grammar if of_calls else grammars, form.kind)
        parts = [grammars.json_schema(schema) for _, schema in form.schemas] if callable(form.value) else []
        for part in parts:
            if part not in self._good:
                self._attempt(part)
        grammar = build(form.value() if callable(form.value) else form.value)
        whole = grammars.after_thought(grammar, thoughts, self._special(thoughts)) if thoughts else grammar
        if whole not in self._good:
            for each in dict.fromkeys((grammar, whole)):
                self._attempt(each)
        return [*parts, whole]

    def _located(self, form: Form, reason: str) -> tuple[str, str]:
        """The path of the first schema that is wrong on its own, and why; else of the form."""
        from appliance.checkpoint.grammar import GrammarError, json_schema

        for param, schema in form.schemas:
            try:
                self._attempt(json_schema(schema))
            except GrammarError as error:
                return param, str(error)
        return form.param, reason

    def _special(self, thoughts: Thoughts) -> dict[str, int]:
        assert self._tokenizer is not None
        ids = {marker: self._tokenizer.token_to_id(marker) for thought in thoughts for marker in thought if marker}
        return {marker: id for marker, id in ids.items() if id is not None and id in self._tokenizer.special_ids}


def wanted_form(fields: StructuredFields) -> Form | None:
    """None for plain text. Raises ApiError naming the field."""
    forms = [form for name, read in _READ.items() if (form := read(getattr(fields, name), name)) is not None]
    if len(forms) > 1:
        raise _contradiction(forms[0].param, forms[1].param)
    return forms[0] if forms else None


def enforced_form(use: ToolUse, form: Form | None) -> Form | None:
    """That of the calls which the answer must be, if it must. OpenAI's `response_format` is of a message: instructor's
    clients send it beside a demanded call, which has none. Raises ApiError if another form is wanted, too."""
    if not use.enforced:
        return form
    if form is not None and form.param.partition(".")[0] != "response_format":
        raise _contradiction("tool_choice", form.param)
    return Form("enforced_calls", use.enforced_calls(), "tools", use.parameter_schemas())


def strict_form(use: ToolUse, formats: ModelFormats, special: Mapping[str, int], prompt: str) -> Form | None:
    """Of a free answer whose calls keep to the schemas of strict tools; None where there are none, or where the model's
    format cannot be bound."""
    tools = use.callable
    shapes = formats.tools.shapes if formats.tools is not None else None
    if shapes is None or not binds_strict(use, formats):
        return None
    reasoning = formats.reasoning
    thoughts = [Thought(begin, end) for begin, end in formats.thoughts(prompt)]
    interleaved = reasoning is not None and reasoning.interleaved

    def text() -> FreeText:
        calls = shapes(tools)
        sections = reasoning.sections if reasoning is not None else ()
        calls_within = any(marker in section.ends for section in sections for marker in calls)
        return FreeText(calls, special, thoughts, calls_within, interleaved)

    return Form("calls_in_text", text, "tools", use.parameter_schemas())


def binds_strict(use: ToolUse, formats: ModelFormats) -> bool:
    """Whether there are strict tools, and calls of the model's format can be bound to their schemas."""
    reasoning = formats.reasoning
    if reasoning is not None and not reasoning.pairs:
        return False  # its messages have headers, which are more than text
    bindable = formats.tools is not None and formats.tools.shapes is not None
    return bindable and any(tool.strict for tool in use.callable)


def _contradiction(one: str, other: str) -> ApiError:
    return bad_request(f"{one} and {other} each set the form of the answer. Send only one of them.", other)


def _response_format(value: ResponseFormat | None, param: str) -> Form | None:
    if value is None:
        return None
    _check_schemas(value, param)
    if value.type == "text":
        return None
    place, schema = f"{param}.schema", value.schema
    if value.type == "json_schema" and (schema is None or value.json_schema is not None):
        place, schema = f"{param}.json_schema.schema", value.json_schema.schema if value.json_schema else None
        if schema is None:
            raise missing(place)
    return _object(param) if schema is None else _schema(schema, place)


def _check_schemas(value: ResponseFormat, param: str) -> None:
    """Raises ApiError for a schema that the type has no use for, and for two that differ."""
    short, long = f"{param}.schema", f"{param}.json_schema"
    if value.type != "json_schema" and value.json_schema is not None:
        raise bad_request(f'{long} needs {param}.type "json_schema", not {shown(value.type)}.', long)
    if value.type == "text" and value.schema is not None:
        message = f'{short} needs {param}.type "json_schema" or "json_object", not "text". Remove one of them.'
        raise bad_request(message, short)
    within = value.json_schema.schema if value.json_schema is not None else None
    if within is not None and value.schema is not None and within != value.schema:
        raise bad_request(f"{short} and {long}.schema differ. Send only one of them.", short)


def _structured_outputs(value: dict[str, Any] | None, param: str) -> Form | None:
    """As vLLM has it: one of json, json_object, regex, choice and grammar."""
    if value is None:
        return None
    given = {name: each for name, each in value.items() if each is not None and each is not False}
    forms = {name: each for name, each in given.items() if name in _KINDS}
    if unknown := sorted(given.keys() - _KINDS.keys() - _WITHOUT_EFFECT):
        place = f"{param}.{unknown[0]}"
        raise bad_request(f"{place} is not supported. Remove it.", place, "unsupported_field")
    if len(forms) != 1:
        raise bad_request(f"{param} has {len(forms)} of {', '.join(_KINDS)}; use exactly one.", param)
    ((name, each),) = forms.items()
    return _KINDS[name](each, f"{param}.{name}")


def _schema(value: Any, param: str) -> Form | None:
    if value is None:
        return None
    if isinstance(value, str):
        if len(value) > MAX_SCHEMA:
            long = f"{param}: {len(value):,} characters are too many; use {MAX_SCHEMA:,} or fewer."
            raise bad_request(long, param, "invalid_grammar")
        try:
            value = json.loads(value)
        except (ValueError, RecursionError) as error:
            raise bad_request(f"{param}: {shown(value)} is not a JSON schema: {error}.", param) from None
    if not isinstance(value, dict | bool):
        raise bad_request(f"{param}: {shown(value)} is not a JSON schema; use an object.", param)
    return Form("json_schema", value, param)


def _object(param: str) -> Form:
    return Form("json_schema", {"type": "object"}, param)


def _switch(value: Any, param: str) -> Form:
    if value is not True:
        raise bad_request(f"{param}: {shown(value)} is not valid; use true or false.", param)
    return _object(param)


def _choice(value: Any, param: str) -> Form | None:
    if value is None:
        return None
    if isinstance(value, list) and len(value) > MAX_CHOICES:
        raise bad_request(f"{param}: {len(value):,} choices are too many; use {MAX_CHOICES:,} or fewer.", param)
    if not isinstance(value, list) or not value or not all(isinstance(text, str) and text for text in value):
        raise bad_request(f"{param}: {shown(value)} is not valid; use a list of strings that are not empty.", param)
    return Form("choice", value, param)


def _text(kind: str) -> Callable[[Any, str], Form | None]:
    def read(value: Any, param: str) -> Form | None:
        if value is None:
            return None
        if not isinstance(value, str) or not value:
            raise bad_request(f"{param}: {shown(value)} is not valid; use a string that is not empty.", param)
        return Form(kind, value, param)

    return read


_READ: Final[dict[str, Callable[[Any, str], Form | None]]] = {
    "response_format": _response_format,
    "structured_outputs": _structured_outputs,
    "guided_json": _schema,
    "guided_regex": _text("regex"),
    "guided_choice": _choice,
    "guided_grammar": _text("lark"),
}
_KINDS: Final[dict[str, Callable[[Any, str], Form | None]]] = {
    "json": _schema,
    "json_object": _switch,
    "regex": _text("regex"),
    "choice": _choice,
    "grammar": _text("lark"),
}
# How vLLM's other backends lay JSON out; here it is always valid, and never padded without end.
_WITHOUT_EFFECT: Final = {
    "disable_fallback", "disable_any_whitespace", "disable_additional_properties", "whitespace_pattern",
}  # fmt: skip
