"""Grammars of tool calls: how a format writes them, in pieces, and free text in which they may stand.

A piece is a text, or one of the types below; a tuple of pieces is one behind the other.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from itertools import count
from typing import Any, Final, NamedTuple, TypeAlias

from appliance.checkpoint.grammar import escaped, json_schema


class Json(NamedTuple):
    """JSON that the schema describes."""

    schema: Any


class Pattern(NamedTuple):
    """Text that a regular expression matches."""

    regex: str


class Upto(NamedTuple):
    """Text up to the first `end`, and that. The text matches `regex`, if there is one."""

    end: str
    regex: str = ""


class OneOf(NamedTuple):
    options: Sequence[Piece]


class Repeated(NamedTuple):
    piece: Piece
    least: int = 0
    most: int | None = None


Piece: TypeAlias = str | Json | Pattern | Upto | OneOf | Repeated | tuple["Piece", ...]

# No second line: a model that is forced to call would fill its answer with them.
SPACE: Final = Pattern(r"[ \t]{0,4}(\n[ \t]{0,15})?")


def optional(piece: Piece) -> Piece:
    return Repeated(piece, 0, 1)


class Thought(NamedTuple):
    """Reasoning behind `begin`, or where the prompt has begun it, None; up to `end`."""

    begin: str | None
    end: str


class FreeText(NamedTuple):
    """An answer that is free, but for calls: behind each of `calls`, a marker, comes its piece. What begins as one of
    `thoughts` is free up to its end, markers of calls included, unless `calls_within`. `recurs`: reasoning may come
    anywhere, and else only first. `special` are the ids of the tokenizer's special tokens, by their texts."""

    calls: Mapping[str, Piece]
    special: Mapping[str, int]
    thoughts: Sequence[Thought] = ()
    calls_within: bool = False
    recurs: bool = False


def enforced_calls(piece: Piece) -> str:
    """An answer that is nothing but `piece`, which has no special tokens. Raises GrammarError."""
    writer = _Writer({})
    return writer.grammar(writer.expression(piece))


def calls_in_text(text: FreeText) -> str:
    """Raises GrammarError."""
    writer = _Writer(text.special)
    answer = writer.name()
    calls = [(writer.until(marker), writer.rule(piece), answer) for marker, piece in text.calls.items()]
    begun: list[tuple[str, ...]] = []
    within: list[tuple[str, str]] = []
    for thought in text.thoughts:
        inside = writer.rule_of_text([(writer.until(thought.end), answer), *(calls if text.calls_within else ())])
        within.append((thought.begin or "", inside))
        if thought.begin is not None and text.recurs:
            begun.append((writer.until(thought.begin), inside))
    writer.define_text(answer, [*calls, *begun])
    if any(thought.begin is None for thought in text.thoughts):
        return writer.grammar(within[0][1])
    first = [f"{writer.until(begin, _BEFORE_THOUGHT)} {inside}" for begin, inside in within]
    return writer.grammar(" | ".join([*first, answer]))


_ANYTHING: Final = "(?s:.*)"
_BEFORE_THOUGHT: Final = r"[ \t\r\n]*"


class _Writer:
    """Rules in Lark, and further grammars that they refer to."""

    def __init__(self, special: Mapping[str, int]) -> None:
        self._special = special
        self._tokens = re.compile("|".join(map(re.escape, sorted(special, key=len, reverse=True))) or "(?!)")
        self._numbers = count()
        self._rules = [f"TEXT: /{_ANYTHING}/"]
        self._grammars: list[dict[str, Any]] = []
        self._known: dict[int, tuple[Piece, str]] = {}

    def grammar(self, start: str) -> str:
        lark = {"lark_grammar": "\n".join((f"start: {start}", *self._rules))}
        return json.dumps({"grammars": [lark, *self._grammars]})

    def name(self) -> str:
        return f"r{next(self._numbers)}"

    def rule(self, piece: Piece) -> str:
        """The name of a rule for it; the same one where it comes again."""
        if id(piece) not in self._known:
            name = self.name()
            self._known[id(piece)] = piece, name
            self._rules.append(f"{name}: {self.expression(piece)}")
        return self._known[id(piece)][1]

    def rule_of_text(self, goes_on: Sequence[tuple[str, ...]]) -> str:
        name = self.name()
        self.define_text(name, goes_on)
        return name

    def define_text(self, name: str, goes_on: Sequence[tuple[str, ...]]) -> None:
        """Text that may end, or go on in one of some ways."""
        self._rules.append(f"{name}: {' | '.join(['TEXT', *map(' '.join, goes_on)])}")

    def expression(self, piece: Piece) -> str:
        match piece:
            case str():
                return self._literal(piece)
            case Pattern():
                return f"/{_slashed(piece.regex)}/"
            case Upto():
                return self.until(piece.end, piece.regex or _ANYTHING)
            case Json():
                return self._json(piece)
            case OneOf():
                return f"({' | '.join(map(self.rule, piece.options))})"
            case Repeated(most=0):
                return ""
            case Repeated():
                most = "" if piece.most is None else piece.most
                return f"({self.expression(piece.piece)}){{{piece.least},{most}}}"
        return " ".join(map(self.expression, piece))

    def until(self, end: str, before: str = _ANYTHING) -> str:
        """Text that `before` matches, up to the first `end`."""
        token = self._tokens.search(end)
        if token:  # no text has it
            behind = end[token.end() :]
            text = f"/(?s:{_slashed(before)}){escaped(end[: token.start()])}/"
            return " ".join([text, self._token(token[0]), *([self._literal(behind)] if behind else ())])
        whole = f"/(?s:{_slashed(before)}){escaped(end)}/"
        if before != _ANYTHING:  # which may match the end, too
            whole += f" & ~/{_ANYTHING}{escaped(end)}(?s:.+)/"
        number = next(self._numbers)
        self._rules += [f"r{number}[lazy]: T{number}", f"T{number}: {whole}"]
        return f"r{number}"

    def _literal(self, text: str) -> str:
        """Special tokens in it are tokens, whatever stands around them."""
        parts, at = [], 0
        for token in self._tokens.finditer(text):
            parts += [json.dumps(text[at : token.start()])] if token.start() > at else []
            parts.append(self._token(token[0]))
            at = token.end()
        return " ".join(parts + ([json.dumps(text[at:])] if at < len(text) or not text else []))

    def _token(self, text: str) -> str:
        return f"<[{self._special[text]}]>"

    def _json(self, piece: Json) -> str:
        key = id(piece.schema)
        if key not in self._known:
            name = f"json{next(self._numbers)}"
            self._known[key] = piece, f"@{name}"
            self._grammars.append({**json.loads(json_schema(piece.schema))["grammars"][0], "name": name})
        return self._known[key][1]


def _slashed(regex: str) -> str:
    """With its slashes as Lark has them."""
    return re.sub(r"\\?/", r"\\/", regex)
