"""From the bytes of a request to its checked fields: every error names the field, and what is ignored is named, too."""

from __future__ import annotations

import difflib
import functools
import itertools
import json
import re
import urllib.parse
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple, TypeVar

import msgspec

from appliance.serving.body import beside_others, parse_body
from appliance.serving.client_fields import SENT_BY_CLIENTS, WITHOUT_EFFECT
from appliance.serving.errors import ApiError, bad_request, missing

T = TypeVar("T", bound=msgspec.Struct)

IGNORED_HEADER: Final = "X-Ingot-Ignored-Fields"
MAX_IGNORED: Final = 32
MAX_UNKNOWN: Final = 256
# How alike a name is to a known one before it is taken for a slip of the pen (`difflib`'s ratio), and before it is
# suggested where every unknown name is refused.
SLIP: Final = 0.8
ALIKE: Final = 0.6
# Looking for slips takes time: only among the first unknown names of a request, and no longer ones.
MAX_LOOKED_UP: Final = 32
MAX_SLIP_LENGTH: Final = 64


class Accepted(NamedTuple):
    """The values of a known field that are accepted, since they request nothing, and why no others are."""

    values: tuple[Any, ...]
    why: str


NO_TOOLS = "tools go through the chat template; use /v1/chat/completions"
OLD_TOOLS = "tools and tool_choice have replaced it"
NO_REASONING = "only chats separate reasoning; use /v1/chat/completions, or reasoning.max_tokens of /v1/responses"
NO_AUDIO = "the engine generates text only"

PARTLY_SUPPORTED: dict[str, Accepted] = {
    "tools": Accepted(([],), NO_TOOLS),
    "tool_choice": Accepted(("none", "auto"), NO_TOOLS),
    "thinking_token_budget": Accepted((-1,), NO_REASONING),
    "thinking_budget": Accepted((-1,), NO_REASONING),
    "thinking_budget_tokens": Accepted((-1,), NO_REASONING),
    "functions": Accepted(([],), OLD_TOOLS),
    "function_call": Accepted(("none", "auto"), OLD_TOOLS),
    "modalities": Accepted((["text"],), NO_AUDIO),
    "audio": Accepted((), NO_AUDIO),
    "prediction": Accepted((), "predicted outputs are not implemented"),
    "web_search_options": Accepted((), "the engine has no access to the web"),
    "verbosity": Accepted(("medium",), "the engine has only one verbosity"),
    "max_completion_tokens": Accepted((), "only chats have it; use max_tokens, or max_output_tokens of /v1/responses"),
    "suffix": Accepted(("",), "the engine does not insert text before a suffix"),
    "best_of": Accepted((1,), "the engine returns every answer it generates, so use n instead"),
    "use_beam_search": Accepted((False,), "beam search is not implemented"),
    "length_penalty": Accepted((1, 1.0), "it applies to beam search, which is not implemented"),
    "prompt_logprobs": Accepted((0,), "use echo and logprobs of /v1/completions"),
    "include_stop_str_in_output": Accepted((False,), "stop strings are never part of the answer"),
    "spaces_between_special_tokens": Accepted((True,), "the spacing of special tokens cannot be changed"),
    "truncate_prompt_tokens": Accepted((), "the engine does not truncate prompts"),
    "allowed_token_ids": Accepted((), "the engine does not restrict the vocabulary"),
    "bad_words": Accepted(([],), "the engine does not ban words"),
    "continue_final_message": Accepted((False,), "the engine always starts a new message"),
    "documents": Accepted(([],), "documents are not supported as a field, so put them into a message"),
    "chat_template": Accepted((), "the engine always uses the model's own chat template"),
    "prompt_embeds": Accepted((), "prompts are texts or lists of token ids"),
}


class Vocabulary(NamedTuple):
    """What the requests of one API may hold beside the fields that we use."""

    partly_supported: Mapping[str, Accepted]
    without_effect: frozenset[str] = WITHOUT_EFFECT
    sent_by_clients: frozenset[str] = SENT_BY_CLIENTS


OPENAI: Final = Vocabulary(PARTLY_SUPPORTED)

MAX_SHOWN = 60
JSON: Final = json.JSONEncoder(ensure_ascii=False)

# msgspec's names of types, and ours.
WORDS = (
    (" | null", ""), ("`", ""), ("int", "an integer"), ("float", "a number"), ("bool", "true or false"),
    ("str", "a string"), ("array", "a list"), (" | ", " or "), ("object", "an object"),
)  # fmt: skip

# By msgspec's notation of a limit: what is wrong with a number and with a length beyond it, and what is right.
LIMITS = {
    ">=": ("small", "short", "{} or more"),
    "<=": ("large", "long", "{} or less"),
    ">": ("small", "short", "more than {}"),
    "<": ("large", "long", "less than {}"),
}


class Ignored:
    """The fields of a request that are accepted without effect."""

    def __init__(self, *, strict: bool) -> None:
        self.strict = strict
        self._names: dict[str, None] = {}
        self._num_unknown = 0

    def add(self, name: str, param: str) -> None:
        """An unknown one: `name` stands for the field wherever it occurs, `param` for this occurrence. Raises ApiError
        where the profile says that requests are to be strict, and for too many."""
        if self.strict:
            raise _unknown(param)
        if name in self._names:
            return
        self._names[name] = None
        self._num_unknown += 1
        if self._num_unknown > MAX_UNKNOWN:
            message = f"{shown(param)} is one of more than {MAX_UNKNOWN:,} unknown fields. Remove them."
            raise bad_request(message, param[:MAX_SHOWN], "unknown_field")

    def add_unless_misspelt(self, name: str, param: str, field: str, known: Sequence[str]) -> None:
        """As `add`. Raises ApiError if `field`, the last part of the name, is taken for a slip of one that is known."""
        looked_up = name not in self._names and self._num_unknown < MAX_LOOKED_UP and len(field) <= MAX_SLIP_LENGTH
        cutoff = ALIKE if self.strict else SLIP
        if looked_up and (nearest := difflib.get_close_matches(field, known, n=1, cutoff=cutoff)):
            raise _unknown(param, f"Did you mean {nearest[0]}?")
        self.add(name, param)

    def add_unused(self, name: str) -> None:
        """A known one that this model has no use for."""
        self._names[name] = None

    @property
    def names(self) -> list[str]:
        return list(self._names)

    @property
    def headers(self) -> dict[str, str]:
        first = itertools.islice(self._names, MAX_IGNORED)
        names = [urllib.parse.quote(name[:MAX_SHOWN], safe="[].") for name in first]
        more = ["..."] if len(self._names) > MAX_IGNORED else []
        return {IGNORED_HEADER: ", ".join([*names, *more])} if names else {}


def decode(raw: bytes, type: type[T]) -> T:
    """Raises ApiError (400) naming the field, its value and what is expected; no field may be unknown."""
    fields, _ = decode_request(raw, type, strict=True)
    return fields


def decode_request(raw: bytes, type: type[T], *, strict: bool, api: Vocabulary = OPENAI) -> tuple[T, Ignored]:
    """As `decode`, but unless `strict`, fields that are unknown, and not a known one misspelt, are ignored."""
    content = parse_body(raw)
    if not isinstance(content, dict):
        raise bad_request(f"The body is {_kind(content)}; send a JSON object.", code="invalid_body")
    known = _names(type)
    alike = [*known, *api.partly_supported, *api.without_effect]
    given = {}
    ignored = Ignored(strict=strict)
    for name, value in content.items():
        if name in known:
            given[name] = value
        elif name in api.partly_supported:
            check_accepted(name, value, api.partly_supported[name])
        elif value is not None and name not in api.without_effect and (strict or name not in api.sent_by_clients):
            ignored.add_unless_misspelt(name, name, name, alike)
    _note_unknown_within(given, type, "", ignored)
    try:
        return msgspec.convert(_with_integers(given, type), type), ignored
    except msgspec.ValidationError as error:
        raise _invalid(given, type, str(error)) from None


async def read_fields(raw: bytes, type: type[T], *, strict: bool, api: Vocabulary = OPENAI) -> tuple[T, Ignored]:
    """As `decode_request`; other requests do not wait for a long one."""
    return await beside_others(raw, lambda: decode_request(raw, type, strict=strict, api=api))


def _note_unknown_within(given: Mapping[str, Any], type: type[msgspec.Struct], path: str, ignored: Ignored) -> None:
    """Of the objects in a request that have a type, however deep."""
    for outer, inner_type in _nested(type).items():
        inner = given.get(outer)
        if not isinstance(inner, dict):
            continue
        names = _names(inner_type)
        for name in [name for name in inner if name not in names]:
            place = f"{path}{outer}.{name}"
            ignored.add_unless_misspelt(place, place, name, names)
        _note_unknown_within(inner, inner_type, f"{path}{outer}.", ignored)


@functools.cache
def _nested(type: type[msgspec.Struct]) -> dict[str, type[msgspec.Struct]]:
    """The fields that are objects, each with its type."""
    return {
        name: each.cls
        for name, types in _types(type).items()
        for each in types
        if isinstance(each, msgspec.inspect.StructType)
    }


@functools.cache
def _types(type: type[msgspec.Struct]) -> dict[str, tuple[msgspec.inspect.Type, ...]]:
    """By field."""
    fields = msgspec.inspect.type_info(type).fields  # type: ignore[attr-defined]
    return {field.encode_name: _alternatives(field.type) for field in fields}


def _alternatives(type: msgspec.inspect.Type) -> tuple[msgspec.inspect.Type, ...]:
    """What it is a union of, without what only the document says."""
    types = getattr(type, "types", (type,))
    return tuple(each.type if isinstance(each, msgspec.inspect.Metadata) else each for each in types)


def _with_integers(given: dict[str, Any], type: type[msgspec.Struct]) -> dict[str, Any]:
    """What JSON writes as 1.0 is an integer where one is wanted, also in lists and in the objects that have a type:
    some languages have no other numbers."""
    whole: dict[str, Any] = {
        name: _whole(value, _types(type).get(name, ()))
        for name, value in given.items()
        if isinstance(value, float | list)
    }
    for name, inner_type in _nested(type).items():
        if isinstance(inner := given.get(name), dict):
            whole[name] = _with_integers(inner, inner_type)
    return {**given, **whole} if whole else given


def _whole(value: Any, types: Sequence[msgspec.inspect.Type]) -> Any:
    if isinstance(value, float):
        kinds = {each.__class__ for each in types}
        wanted = msgspec.inspect.IntType in kinds and msgspec.inspect.FloatType not in kinds
        return int(value) if wanted and value.is_integer() else value
    inner = next((_alternatives(each.item_type) for each in types if isinstance(each, msgspec.inspect.ListType)), ())
    if inner and not {float, list}.isdisjoint(map(type, value)):
        return [_whole(each, inner) if isinstance(each, float | list) else each for each in value]
    return value


def decode_part(value: Any, type: type[T], param: str, ignored: Ignored) -> T:
    """An object within a request, at the path `param`. Raises ApiError as `decode_request`."""
    if not isinstance(value, dict):
        raise bad_request(f"{param}: {shown(value)} is not valid; use an object.", param)
    known = _names(type)
    for name in value:
        if name not in known:
            place = f"{param}.{name}"
            ignored.add_unless_misspelt(re.sub(r"\[\d+\]", "[]", place), place, name, known)
    try:
        given = {name: value[name] for name in value if name in known}
        return msgspec.convert(_with_integers(given, type), type)
    except msgspec.ValidationError as error:
        raise _invalid(value, type, str(error), f"{param}.") from None


@functools.cache
def _names(type: type[msgspec.Struct]) -> list[str]:
    return [field.encode_name for field in msgspec.structs.fields(type)]


def shown(value: Any) -> str:
    """A value in an error, in JSON as the client wrote it: never more than a line, and never a whole prompt."""
    text = ""
    try:
        for chunk in JSON.iterencode(value):  # the value may have millions of parts
            text += chunk
            if len(text) > MAX_SHOWN:
                break
    except RecursionError:
        return "..."
    return text if len(text) <= MAX_SHOWN else text[: MAX_SHOWN - 3] + "..."


def check_accepted(name: str, value: Any, row: Accepted) -> None:
    """Raises ApiError for a value that is not supported."""
    if value is None or value in row.values:
        return
    accepted = " or ".join(shown(value) for value in row.values)
    remedy = f"Remove it, or send {accepted}." if accepted else "Remove it."
    message = f"{name}: {shown(value)} is not supported: {row.why}. {remedy}"
    raise bad_request(message, param=name, code="unsupported_field")


def _unknown(param: str, remedy: str = "Remove it.") -> ApiError:
    return bad_request(f"{shown(param)} is not a known field. {remedy}", param, "unknown_field")


def _invalid(given: dict[str, Any], type: type[msgspec.Struct], message: str, within: str = "") -> ApiError:
    """msgspec says "Expected `int` >= 1 - at `$.n`"; show people the value as well. `within` is the path to `given`."""
    what, _, where = message.partition(" - at `$")
    path = where.rstrip("`").lstrip(".")
    param = f"{within}{path}".rstrip(".") or None
    value = _at(given, path) if path else None
    if what.startswith("Object missing required field"):
        field = re.sub(r".*`(.+)`", r"\1", what)
        param = f"{param}.{field}" if param else field
        return missing(param)
    if what.startswith("Object contains unknown field"):
        field = re.sub(r".*`(.+)`", r"\1", what, flags=re.DOTALL)
        return _unknown(f"{param}.{field}")
    if what.startswith("Invalid enum value"):
        wrong = f"is not valid; use {' or '.join(map(shown, _choices(msgspec.inspect.type_info(type), path)))}"
    elif what == "Number out of range":  # of an integer that no float holds
        wrong = "is out of range; use a number nearer to 0"
    else:
        wrong = _wrong(what.removeprefix("Expected ").split(", got ")[0])
    return bad_request(f"{param or 'The body'}: {shown(value)} {wrong}.", param)


def _choices(type: msgspec.inspect.Type, path: str) -> Iterator[Any]:
    """The values of the Literal at `path` within the type."""
    if isinstance(type, msgspec.inspect.UnionType):
        for each in type.types:
            yield from _choices(each, path)
    elif isinstance(type, msgspec.inspect.StructType):
        name, _, rest = path.partition(".")
        for field in type.fields:
            if field.encode_name == name:
                yield from _choices(field.type, rest)
    elif isinstance(type, msgspec.inspect.LiteralType):
        yield from type.values


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
