"""The requests of mixed arrivals and of the soak: of every kind that the server can be asked, each with what its answer
must be."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from typing import Any, Final, Literal, NamedTuple

import msgspec

from appliance.accept.asking import CHAT, COMPLETIONS, Reply
from appliance.accept.sameness import compare_tokens, excerpt
from appliance.accept.site import Site
from appliance.bench.answers import RequestFailedError
from appliance.bench.prompts import random_words

SHORT_WORDS: Final = (8, 40)
LONG_WORDS: Final = (500, 1500)
PROMPT_SHARE: Final = 0.4  # of the context
SHORT_TOKENS: Final = 24
LONG_TOKENS: Final = 12
FORM_TOKENS: Final = 256
STOP_LENGTH: Final = 3
LEAVE_AFTER: Final[tuple[int | float, ...]] = (0.01, 1, 5)  # seconds, or events
COLOURS: Final = ["red", "green", "blue"]
SCHEMA: Final[dict[str, Any]] = {
    "type": "object",
    "properties": {
        "colour": {"enum": COLOURS},
        "count": {"type": "integer", "minimum": 0, "maximum": 99},
        "sure": {"type": "boolean"},
    },
    "required": ["colour", "count", "sure"],
    "additionalProperties": False,
}
TOOL: Final = "set_colour"

Greedy = Literal["scored", "exact", "no"]
Verify = Callable[[Reply], str | None]
"""What is wrong with an answer; None if nothing is."""


class _Form(msgspec.Struct, forbid_unknown_fields=True):
    colour: str
    count: int
    sure: bool


class Request(msgspec.Struct, kw_only=True):
    """`check` is the check that `verify` stands for. `alone` is what the server answered while it had nothing else to
    do; requests with one are compared with it. `leave_after`: the client goes away."""

    name: str
    kind: str
    path: str = COMPLETIONS
    body: dict[str, Any]
    check: str = ""
    verify: Verify | None = None
    alone: Reply | None = None
    leave_after: int | float | None = None


class Kind(NamedTuple):
    """`share` of the requests are of this kind, as a weight. `needs` are abilities of the server. The answers of greedy
    kinds are known from asking alone: "scored" ones can be compared up to ties, "exact" ones where there are none."""

    name: str
    share: float
    needs: tuple[str, ...]
    greedy: Greedy
    make: Callable[[Site, random.Random], dict[str, Any]]


def _prompt(site: Site, rng: random.Random, words: tuple[int, int] = SHORT_WORDS) -> str:
    """Never longer than its share of the context."""
    most = max(int(site.max_model_len * PROMPT_SHARE / site.tokens_a_word), 2)
    count = rng.randint(*(min(each, most) for each in words))
    return next(random_words(count, rng.randrange(1 << 30))).capitalize()


def _short(site: Site, rng: random.Random) -> dict[str, Any]:
    return {"prompt": _prompt(site, rng), "max_tokens": SHORT_TOKENS, "temperature": 0, **site.scored}


def _streamed(site: Site, rng: random.Random) -> dict[str, Any]:
    return _short(site, rng) | {"stream": True, **site.fields("usage")}


def _long(site: Site, rng: random.Random) -> dict[str, Any]:
    return _streamed(site, rng) | {"prompt": _prompt(site, rng, LONG_WORDS), "max_tokens": LONG_TOKENS}


def _chat(site: Site, rng: random.Random) -> dict[str, Any]:
    asked = [{"role": "user", "content": _prompt(site, rng) + "?"}]
    body = {"messages": asked, "max_tokens": SHORT_TOKENS, "temperature": 0, "stream": True}
    return body | site.fields("usage")


def _sampled(site: Site, rng: random.Random) -> dict[str, Any]:
    return {"prompt": _prompt(site, rng), "max_tokens": SHORT_TOKENS, "temperature": 0.8, "top_p": 0.95, "stream": True}


def _form_tokens(site: Site) -> int:
    return min(FORM_TOKENS, site.max_model_len // 4)


def _structured(site: Site, rng: random.Random) -> dict[str, Any]:
    form = {"type": "json_schema", "json_schema": {"name": "answer", "schema": SCHEMA, "strict": True}}
    return _chat(site, rng) | {"max_tokens": _form_tokens(site), "response_format": form}


def _tool(site: Site, rng: random.Random) -> dict[str, Any]:
    function = {"name": TOOL, "description": "Set a colour", "parameters": SCHEMA}
    demanded = {
        "tools": [{"type": "function", "function": function}],
        "tool_choice": {"type": "function", "function": {"name": TOOL}},
    }
    return _chat(site, rng) | {"max_tokens": _form_tokens(site), **demanded}


def _left(site: Site, rng: random.Random) -> dict[str, Any]:
    return {
        "prompt": _prompt(site, rng),
        "max_tokens": _form_tokens(site),
        "temperature": 0,
        "stream": True,
        **site.fields("length"),
    }


KINDS: Final = (
    Kind("short", 3, (), "scored", _short),
    Kind("stream", 4, (), "scored", _streamed),
    Kind("long", 2, (), "scored", _long),
    Kind("chat", 2, ("chat",), "exact", _chat),
    Kind("sampled", 2, (), "no", _sampled),
    Kind("structured", 1, ("chat", "structured"), "no", _structured),
    Kind("tool", 1, ("chat", "tools"), "no", _tool),
    Kind("left", 2, (), "no", _left),
)


def made(kind: Kind, site: Site, rng: random.Random, number: int) -> Request:
    """A new request of the kind."""
    body = kind.make(site, rng)
    check, verify = _VERIFIED.get(kind.name, ("", None))
    return Request(
        name=f"{kind.name}-{number}",
        kind=kind.name,
        path=CHAT if "messages" in body else COMPLETIONS,
        body=body,
        check=check,
        verify=verify,
        leave_after=rng.choice(LEAVE_AFTER) if kind.name == "left" else None,
    )


def possible(site: Site) -> list[Kind]:
    return [kind for kind in KINDS if site.can(*kind.needs)]


async def find_forms(site: Site) -> None:
    """Whether the server keeps answers to schemas, and calls tools that are demanded; noted in `site.missing`."""
    for ability, kind in (("structured", "structured"), ("tools", "tool")):
        if not site.can("chat"):
            site.missing[ability] = site.missing["chat"]
            continue
        request = made(next(each for each in KINDS if each.name == kind), site, random.Random(0), 0)
        try:
            await site.ask(request.path, request.body)
        except RequestFailedError as error:
            if error.status:
                named = "response_format" if ability == "structured" else "tool_choice"
                site.missing[ability] = f"the server refuses {named} ({error.kind}: {error})"


def stopped(site: Site, request: Request, number: int, rng: random.Random) -> Request | None:
    """The same request with a stop string taken from its answer; None if that has no text to stop at."""
    alone = request.alone
    text = alone.text if alone is not None else ""
    starts = [start for start in range(1, len(text) - STOP_LENGTH + 1) if "\ufffd" not in _stop_at(text, start)]
    if alone is None or not starts:
        return None
    stop = _stop_at(text, rng.choice(starts))
    expected = alone.text[: alone.text.index(stop)]

    def verify(reply: Reply) -> str | None:
        if stop in reply.text:
            return f"{excerpt(reply.text)} goes on after {stop!r}"
        if (reply.text, reply.finish_reason) == (expected, "stop"):
            return None
        shared = min(len(reply.tokens), len(alone.tokens))
        if compare_tokens(alone.tokens[:shared], reply.tokens[:shared], site.tolerance).tied:
            return None  # another text, in which the stop string need not be
        return f"{excerpt(reply.text)} ({reply.finish_reason}) instead of {excerpt(expected)}, before {stop!r}"

    body = request.body | {"stop": [stop]}
    return Request(name=f"stop-{number}", kind="stop", body=body, check="mixed.stops", verify=verify)


def _keeps_to_schema(text: str, *, is_cut_off: bool) -> str | None:
    """A weak model may write blanks until it is cut off; what it wrote must be the beginning of a valid answer."""
    if is_cut_off:
        said = "".join(text.split())
        return None if any(valid.startswith(said) for valid in _valid_forms()) else f"cut off: {excerpt(text)}"
    try:
        form = msgspec.json.decode(text, type=_Form)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        return f"{excerpt(text)}: {error}"
    if form.colour not in COLOURS or not 0 <= form.count <= 99:
        return excerpt(text)
    return None


def _stop_at(text: str, start: int) -> str:
    return text[start : start + STOP_LENGTH]


def _valid_forms() -> Iterator[str]:
    """All of them, without blanks."""
    for colour in COLOURS:
        for count in range(100):
            for sure in ("true", "false"):
                yield f'{{"colour":"{colour}","count":{count},"sure":{sure}}}'


def _is_structured(reply: Reply) -> str | None:
    return _keeps_to_schema(reply.text, is_cut_off=reply.finish_reason == "length")


def _is_call(reply: Reply) -> str | None:
    is_cut_off = reply.finish_reason == "length"
    if is_cut_off and not reply.calls and not reply.text:
        return None  # before the call's name was whole
    if len(reply.calls) != 1 or reply.calls[0].name != TOOL:
        names = ", ".join(call.name for call in reply.calls) or f"no call: {excerpt(reply.text)}"
        return f"{names} instead of one call of {TOOL}"
    return _keeps_to_schema(reply.calls[0].arguments, is_cut_off=is_cut_off)


# By kind: the check that its answers stand for, and what they must be.
_VERIFIED: Final[dict[str, tuple[str, Verify]]] = {
    "structured": ("mixed.structured", _is_structured),
    "tool": ("mixed.tools", _is_call),
}


def form_problem(request: Request, reply: Reply) -> str | None:
    """What is wrong with the form of any answer."""
    problems = list(reply.problems)
    limit = request.body["max_tokens"]
    if reply.output_tokens is not None and reply.output_tokens > limit:
        problems.append(f"{reply.output_tokens:,} tokens, and max_tokens is {limit:,}")
    if reply.finish_reason == "length" and reply.output_tokens is not None and reply.output_tokens < limit:
        problems.append(f"finish_reason length after {reply.output_tokens:,} of {limit:,} tokens")
    scored = "logprobs" in request.body and request.kind != "stop"  # of a token cut off, servers differ
    if scored and reply.output_tokens is not None and len(reply.tokens) != reply.output_tokens:
        problems.append(f"{len(reply.tokens):,} logprobs of {reply.output_tokens:,} tokens")
    if any(token.logprob is None for token in reply.tokens):
        problems.append("a token without a logprob")
    return "; ".join(problems) or None
