"""Grammars that answers keep to: compiled beside the engine's loop, and turned into the tokens that may come next.

llguidance (https://github.com/guidance-ai/llguidance) compiles JSON schemas, regular expressions and Lark grammars, and
computes each mask from the state of a parser.
"""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from collections.abc import Collection, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Final

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from llguidance import LLMatcher, LLTokenizer

# So many compiled grammars are kept; the least recently used ones are dropped first.
KEPT: Final = 64
THREADS: Final = 2


class GrammarError(Exception):
    """The grammar cannot be compiled for this model; says why."""


class Constraint:
    """Where one answer stands in its grammar. `num_words` of 32 bits hold one bit for each token."""

    def __init__(self, matcher: LLMatcher, num_words: int) -> None:
        self._matcher = matcher
        self.num_words = num_words

    @property
    def is_complete(self) -> bool:
        """Nothing may follow."""
        return bool(self._matcher.is_stopped())

    @property
    def error(self) -> str:
        """Why the grammar can no longer be followed, such as a limit that it exceeds; "" while it can be."""
        return str(self._matcher.get_error()).partition("\n")[0] if self._matcher.is_error() else ""

    def accept(self, token_id: int) -> None:
        """`token_id` is the next token of the answer."""
        self._matcher.consume_token(token_id)

    def fill(self, words: NDArray[np.int32]) -> None:
        """Set the bits of the tokens that may come next, and clear the others."""
        self._matcher.unsafe_compute_mask_ptr(words.ctypes.data, words.nbytes)


def masks(constraints: Sequence[tuple[int, Constraint]]) -> NDArray[np.int32]:
    """As `SamplingBatch.allowed`, for rows and their constraints."""
    found = np.zeros((len(constraints), 1 + constraints[0][1].num_words), dtype=np.int32)
    for mask, (row, constraint) in zip(found, constraints, strict=True):
        mask[0] = row
        constraint.fill(mask[1:])
    return found


class Grammars:
    """Compiles grammars for one model, in threads: a large schema takes a second, for which no other request should
    have to wait. llguidance lets go of Python's lock meanwhile."""

    def __init__(self, folder: Path, vocab_size: int, eos_token_ids: Collection[int]) -> None:
        self._folder = folder
        self._vocab_size = vocab_size
        self._eos_token_ids = sorted(eos_token_ids)
        self._compiled: OrderedDict[bytes, Future[LLMatcher]] = OrderedDict()

    def compile(self, grammar: str) -> Future[LLMatcher]:
        """`grammar` in llguidance's form. The future raises GrammarError."""
        key = hashlib.sha256(grammar.encode()).digest()
        future = self._compiled.pop(key, None) or self._threads.submit(self._compile, grammar)
        self._compiled[key] = future
        if len(self._compiled) > KEPT:
            self._compiled.popitem(last=False)
        return future

    def begin(self, compiled: Future[LLMatcher]) -> Constraint:
        """The beginning of an answer, once `compiled` is done. Raises GrammarError."""
        return Constraint(compiled.result().deep_copy(), -(-self._tokenizer.vocab_size // 32))

    def _compile(self, grammar: str) -> LLMatcher:
        from llguidance import LLMatcher

        matcher = LLMatcher(self._tokenizer, grammar, log_level=0)
        if matcher.is_error():
            raise GrammarError(matcher.get_error())
        return matcher

    @cached_property
    def _threads(self) -> ThreadPoolExecutor:
        return ThreadPoolExecutor(THREADS, thread_name_prefix="grammars")

    @cached_property
    def _tokenizer(self) -> LLTokenizer:
        from llguidance import LLTokenizer

        text = (self._folder / "tokenizer.json").read_text(encoding="utf-8")
        try:
            tokenizer = LLTokenizer(text, eos_token=self._eos_token_ids or None)
            if tokenizer.vocab_size < self._vocab_size:  # the model's last rows stand for no token
                tokenizer = LLTokenizer(text, self._vocab_size, self._eos_token_ids or None)
        except ValueError as error:
            raise GrammarError(f"this model's tokenizer cannot be used for structured output: {error}") from error
        return tokenizer
