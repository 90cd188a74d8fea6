"""Grammars for the answers of one model, over llguidance (https://github.com/guidance-ai/llguidance).

A grammar is text in llguidance's form: what `json_schema`, `regex`, `choice` and `lark` return, alone or put together
by `lark`. Compiling one and each of its steps is bounded in time and memory, whatever it says.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Mapping, Sequence
from functools import cache, cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from appliance.checkpoint.json_file import read_text

if TYPE_CHECKING:
    from llguidance import LLMatcher, LLParserLimits, LLTokenizer

# Longer ones are refused. Of up to this size, none was found that takes 1 s or 100 MB to compile.
MAX_CHARACTERS: Final = 256 * 1024
# So many items of the parser make a step of about a millisecond for each 20,000.
STEP_ITEMS: Final = 20_000
# What a regular expression that explodes takes is some 0.1 s with this, and 2 s with llguidance's own limit; an `enum`
# or a `choice` of MAX_CHARACTERS needs a little less.
LEXER_FUEL: Final = 300_000
MAX_TOKENIZER: Final = 256 << 20

# A new line and its indentation, or one space: enough to lay JSON out, and a model cannot go on with it for ever.
_WHITESPACE: Final = r"(\n[ \t]{0,60}| )?"


# llguidance's words that say nothing to whoever wrote the grammar.
_OBSCURE: Final = {"NoExtensionBias": 'it refers to itself without end, as `{"$ref": "#"}` does'}


class GrammarError(ValueError):
    """The grammar cannot be compiled or followed; says why in one line."""


def json_schema(schema: dict[str, Any] | bool) -> str:
    """JSON that the schema describes. Raises GrammarError."""
    from llguidance import LLMatcher

    try:
        grammar = LLMatcher.grammar_from_json_schema(
            json.dumps(schema), defaults={"coerce_one_of": True, "whitespace_pattern": _WHITESPACE}
        )
    except (RecursionError, ValueError) as error:
        raise GrammarError(f"the schema cannot be read: {error}") from error
    return str(grammar)


def regex(pattern: str) -> str:
    from llguidance import LLMatcher

    return str(LLMatcher.grammar_from_regex(pattern))


def choice(texts: Sequence[str]) -> str:
    """One of `texts`, as one terminal: of rules, no step may have more than 2,000 side by side."""
    return lark("start: CHOICE\nCHOICE: " + " | ".join(map(json.dumps, texts)))


def lark(text: str) -> str:
    """Lark, with what llguidance adds to it; or GBNF, as llama.cpp has it. Raises GrammarError."""
    from llguidance import LLMatcher
    from llguidance.gbnf_to_lark import any_to_lark

    if len(text) > MAX_CHARACTERS:
        raise GrammarError(_too_long(len(text)))
    try:
        converted = any_to_lark(text)
    except RecursionError as error:
        raise GrammarError("it is nested too deeply") from error
    except Exception as error:  # bare ones, of rules that are missing or there twice
        raise GrammarError(str(error)) from error
    try:
        return str(LLMatcher.grammar_from_lark(converted))
    except (RecursionError, ValueError) as error:
        raise GrammarError(str(error) or "it is nested too deeply") from error


def after_thought(grammar: str, thoughts: Sequence[tuple[str | None, str]], special: Mapping[str, int]) -> str:
    """An answer of `grammar`, behind one of `thoughts`: reasoning with what begins and ends it, where None says that
    the prompt has begun it. Where each has a beginning, there may be none. `special`: the ids of markers that are
    special tokens; of others, the text counts."""
    rules, names = [], []
    for number, (begin, end) in enumerate(thoughts):
        names.append(f"thought{number}")
        if end in special and (begin is None or begin in special):
            begins = "" if begin is None else f"<[{special[begin]}]> "
            rules.append(f"thought{number}: {begins}/(?s:.*)/ <[{special[end]}]>")
        else:
            rules.append(f"thought{number}[lazy]: /{escaped(begin or '')}(?s:.*){escaped(end)}/")
    optional = "?" if all(begin is not None for begin, _ in thoughts) else ""
    start = f"start: (({' | '.join(names)}) /[ \\n]{{0,4}}/){optional} @answer"
    answer, *others = json.loads(grammar)["grammars"] if grammar.startswith("{") else [{"lark_grammar": grammar}]
    whole = [{"lark_grammar": "\n".join((start, *rules))}, {**answer, "name": "answer"}, *others]
    return json.dumps({"grammars": whole})


def escaped(text: str) -> str:
    """A regular expression for the text, as it may stand between slashes in Lark."""
    return re.escape(text).replace("/", "\\/").replace("\\\n", "\\n")


class GrammarCompiler:
    """Compiles grammars for a model's tokenizer, in any thread. `vocab_size` is that of the model's logits."""

    def __init__(self, folder: Path, vocab_size: int, eos_token_ids: Collection[int]) -> None:
        self._folder = folder
        self._vocab_size = vocab_size
        self._eos_token_ids = sorted(eos_token_ids)

    def compile(self, grammar: str) -> LLMatcher:
        """At the beginning of an answer, whose first step has been tried: what that finds out is kept for all copies,
        so that the engine's steps do not wait for it. Raises GrammarError; lets go of Python's lock meanwhile."""
        from llguidance import LLMatcher

        if len(grammar) > MAX_CHARACTERS:
            raise GrammarError(_too_long(len(grammar)))
        matcher = LLMatcher(self.tokenizer, grammar, log_level=0, limits=_limits())
        check(matcher)
        try_first_step(matcher.deep_copy())
        return matcher

    @cached_property
    def tokenizer(self) -> LLTokenizer:
        """Has a token for each of the model's logits, at least. Raises GrammarError."""
        from llguidance import LLTokenizer

        text = read_text(self._folder / "tokenizer.json", "tokenizer", MAX_TOKENIZER)
        try:
            tokenizer = LLTokenizer(text, eos_token=self._eos_token_ids or None)
            if tokenizer.vocab_size < self._vocab_size:  # the last logits stand for no token
                tokenizer = LLTokenizer(text, self._vocab_size, self._eos_token_ids or None)
        except ValueError as error:
            raise GrammarError(f"this model's tokenizer does not support grammars: {error}") from error
        return tokenizer


def try_first_step(matcher: LLMatcher) -> None:
    """Raises GrammarError where an answer passes a limit with its first token."""
    allowed = int.from_bytes(matcher.compute_bitmask(), "little")
    matcher.compute_ff_tokens()
    check(matcher)
    if allowed and not matcher.is_stopped():
        matcher.consume_token((allowed & -allowed).bit_length() - 1)
        check(matcher)


def check(matcher: LLMatcher) -> None:
    """Raises GrammarError where it cannot go on."""
    if matcher.is_error():
        raise _error(matcher.get_error())


def validate(grammar: str) -> None:
    """What can be said of a grammar before there is a model: less than `GrammarCompiler.compile` does, and as bounded.
    Raises GrammarError; lets go of Python's lock meanwhile."""
    from llguidance import LLMatcher

    if len(grammar) > MAX_CHARACTERS:
        raise GrammarError(_too_long(len(grammar)))
    is_wrong, told = LLMatcher.validate_grammar_with_warnings(grammar, limits=_limits())
    if is_wrong:
        raise _error(told[0])
    matcher = LLMatcher(_bytes_as_tokens(), grammar, log_level=0, limits=_limits())
    try:
        check(matcher)
        try_first_step(matcher)
    except GrammarError as error:
        if str(error) in _OBSCURE.values():  # what else is wrong may be so with these tokens alone
            raise


@cache
def _bytes_as_tokens() -> LLTokenizer:
    from llguidance import LLTokenizer

    return LLTokenizer("byte")


@cache
def _limits() -> LLParserLimits:
    from llguidance import LLParserLimits

    return LLParserLimits(step_max_items=STEP_ITEMS, initial_lexer_fuel=LEXER_FUEL, verbose_errors=False)


def _error(told: str) -> GrammarError:
    """A place in the grammar, an excerpt with a mark below it, and sometimes what is wrong after all that."""
    lines = [line.strip() for line in told.splitlines()]
    named = [line.removeprefix("error:").strip() for line in lines if line.startswith("error:")]
    reason = named[-1] if named else lines[0]
    return GrammarError(_OBSCURE.get(reason, reason))


def _too_long(characters: int) -> str:
    return f"it has {characters:,} characters; use {MAX_CHARACTERS:,} or fewer"
