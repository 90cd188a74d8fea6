"""From the bytes of a request to its checked fields: every error names the field, and nothing is silently ignored."""

from __future__ import annotations

import difflib
import re
from typing import Any, NamedTuple, TypeVar

import msgspec
from litestar import Request
from litestar.exceptions import InternalServerException

from appliance.serving.errors import ApiError, ClientGoneError, bad_request

T = TypeVar("T", bound=msgspec.Struct)

# Fields that say something about the request, but ask for no other answer.
WITHOUT_EFFECT = frozenset({
    "user", "metadata", "store", "service_tier", "safety_identifier", "prompt_cache_key", "prompt_cache_retention",
    "parallel_tool_calls", "request_id",
})  # fmt: skip


class Only(NamedTuple):
    """A field that is known, and accepted where it asks for nothing special."""

    values: tuple[Any, ...]
    why: str


NO_TOOLS = "this engine does not call tools"
NO_AUDIO = "this engine answers in text only"
PLAIN_TEXT = "this engine does not constrain the form of its answers"

REFUSED_UNLESS: dict[str, Only] = {
    "tools": Only(([],), NO_TOOLS),
    "tool_choice": Only(("none", "auto"), NO_TOOLS),
    "functions": Only(([],), NO_TOOLS),
    "function_call": Only(("none",), NO_TOOLS),
    "response_format": Only(({"type": "text"},), PLAIN_TEXT),
    "structured_outputs": Only((), PLAIN_TEXT),
    "guided_json": Only((), PLAIN_TEXT),
    "guided_regex": Only((), PLAIN_TEXT),
    "guided_choice": Only((), PLAIN_TEXT),
    "guided_grammar": Only((), PLAIN_TEXT),
    "logit_bias": Only(({},), "this engine does not change the scores of single tokens"),
    "modalities": Only((["text"],), NO_AUDIO),
    "audio": Only((), NO_AUDIO),
    "prediction": Only((), "this engine does not take predicted answers"),
    "web_search_options": Only((), "this engine never leaves the machine"),
    "reasoning_effort": Only((), "set it through chat_template_kwargs, if the model's template knows it"),
    "verbosity": Only(("medium",), "this engine has one verbosity"),
    "suffix": Only(("",), "this engine does not fill in the middle"),
    "best_of": Only((1,), "this engine returns every answer it generates: use n"),
    "use_beam_search": Only((False,), "this engine samples tokens and has no beam search"),
    "length_penalty": Only((1, 1.0), "it belongs to beam search, which this engine does not have"),
    "prompt_logprobs": Only((0,), "this engine reports logprobs for its answer only"),
    "include_stop_str_in_output": Only((False,), "stop strings are never part of the answer"),
    "spaces_between_special_tokens": Only((True,), "this engine has only one way of spacing special tokens"),
    "truncate_prompt_tokens": Only((), "this engine never cuts a prompt: shorten it"),
    "allowed_token_ids": Only((), "this engine does not restrict the vocabulary"),
    "bad_words": Only(([],), "this engine does not ban words"),
    "continue_final_message": Only((False,), "this engine always starts a new message"),
    "documents": Only(([],), "put the documents into a message"),
    "chat_template": Only((), "the model's own chat template is used"),
}

MAX_SHOWN = 60

# How msgspec says what it expects, and how people do.
WORDS = (
    (" | null", ""), ("`", ""), ("int", "an integer"), ("float", "a number"), ("bool", "true or false"),
    ("str", "a string"), ("array", "a list"), (" | ", " or "), ("object", "an object"),
)  # fmt: skip

# By how msgspec writes a limit: what is wrong with a value beyond it, with a text of such a length, and what is right.
LIMITS = {
    ">=": ("small", "short", "{} or more"),
    "<=": ("large", "long", "{} or less"),
    ">": ("small", "short", "more than {}"),
    "<": ("large", "long", "less than {}"),
}


async def read_body(request: Request[Any, Any, Any]) -> bytes:
    """Raises ClientGoneError when the client leaves before it has sent all."""
    try:
        return await request.body()
    except InternalServerException:  # what the framework makes of a connection that ends too early
        raise ClientGoneError from None


def decode(raw: bytes, type: type[T]) -> T:
    """Raises ApiError (400) naming the field, its value and what is expected."""
    content = _parse(raw)
    if not isinstance(content, dict):
        raise bad_request(f"The body is {_kind(content)}; send a JSON object.")
    known = {field.encode_name for field in msgspec.structs.fields(type)}
    given = {}
    for name, value in content.items():
        if name in known:
            given[name] = value
        elif name not in WITHOUT_EFFECT and value is not None:
            _check_refused(name, value, known)
    try:
        return msgspec.convert(given, type)
    except msgspec.ValidationError as error:
        raise _invalid(given, str(error)) from None


def shown(value: Any) -> str:
    """A value in an error: never more than a line, and never a whole prompt."""
    if value is None or isinstance(value, bool):
        return msgspec.json.encode(value).decode()  # as the client spells it, not as Python does
    text = repr(value) if not isinstance(value, str) else f'"{value}"'
    return text if len(text) <= MAX_SHOWN else text[: MAX_SHOWN - 3] + "..."


def _parse(raw: bytes) -> Any:
    try:
        raw.decode()
        return msgspec.json.decode(raw)
    except UnicodeDecodeError as error:
        raise bad_request(f"The body is not UTF-8: invalid byte at position {error.start:,}.") from None
    except msgspec.DecodeError as error:
        raise bad_request(f"The body is not valid JSON: {error}.") from None
    except RecursionError:
        raise bad_request("The body is nested too deeply.") from None


def _check_refused(name: str, value: Any, known: set[str]) -> None:
    only = REFUSED_UNLESS.get(name)
    if only is None:
        nearest = difflib.get_close_matches(name, [*known, *REFUSED_UNLESS, *WITHOUT_EFFECT], n=1)
        hint = f" Did you mean {nearest[0]}?" if nearest else " Remove it."
        raise bad_request(f"{shown(name)} is not a known field.{hint}", param=name, code="unknown_field")
    if value not in only.values:
        accepted = " or ".join(shown(accepted) for accepted in only.values)
        remedy = f"Remove it, or send {accepted}." if accepted else "Remove it."
        message = f"{name}: {shown(value)} is not supported: {only.why}. {remedy}"
        raise bad_request(message, param=name, code="unsupported_field")


def _invalid(given: dict[str, Any], message: str) -> ApiError:
    """msgspec says "Expected `int` >= 1 - at `$.n`"; people read the value as well."""
    what, _, where = message.partition(" - at `$")
    param = where.rstrip("`").lstrip(".") or None
    value = _at(given, param) if param else None
    if what.startswith("Object missing required field"):
        field = re.sub(r".*`(.+)`", r"\1", what)
        param = f"{param}.{field}" if param else field
        return bad_request(f"{param} is missing.", param=param, code="missing_field")
    if what.startswith("Object contains unknown field"):
        field = re.sub(r".*`(.+)`", r"\1", what, flags=re.DOTALL)
        return bad_request(
            f"{shown(f'{param}.{field}')} is not a known field. Remove it.", f"{param}.{field}", "unknown_field"
        )
    wrong = _wrong(what.removeprefix("Expected ").split(", got ")[0])
    return bad_request(f"{param or 'The body'}: {shown(value)} {wrong}.", param, "invalid_value")


def _wrong(expected: str) -> str:
    """`int` >= 1  ->  is too small; use 1 or more"""
    limit = re.search(r"(of length )?(>=|<=|>|<) (\S+)$", expected)
    if limit:
        number, unit = float(limit[3]), " characters" if limit[1] else ""
        size, length, right = LIMITS[limit[2]]
        bound = right.format(f"{int(limit[3].removesuffix('.0')):,}" if number.is_integer() else limit[3])
        return f"is too {length if limit[1] else size}; use {bound}{unit}"
    for ours, theirs in WORDS:
        expected = expected.replace(ours, theirs)
    return f"is not valid; use {expected}"


def _at(content: Any, path: str) -> Any:
    for key in re.findall(r"[^.\[\]]+", path):
        content = content[int(key)] if isinstance(content, list) else content.get(key)
    return content


def _kind(value: object) -> str:
    kinds: dict[type, str] = {list: "an array", str: "a string", bool: "a boolean", int: "a number", float: "a number"}
    return kinds.get(type(value), "null")
