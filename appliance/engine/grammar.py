"""Grammars that answers keep to: compiled beside the engine's loop, and turned into the tokens that may come next."""

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

from appliance.checkpoint.grammar import GrammarCompiler, GrammarError, check

if TYPE_CHECKING:
    from llguidance import LLMatcher

# So many compiled grammars are kept; the least recently used ones are dropped first.
KEPT: Final = 64
THREADS: Final = 2


class Constraint:
    """Where one answer stands in its grammar. `num_words` of 32 bits hold one bit for each token."""

    def __init__(self, matcher: LLMatcher, num_words: int) -> None:
        self._matcher = matcher
        self.num_words = num_words

    @property
    def is_complete(self) -> bool:
        """It has been followed to its end."""
        return bool(self._matcher.is_stopped()) and not self._matcher.is_error()

    @property
    def error(self) -> str:
        """Why the grammar can no longer be followed, such as a limit that it exceeds; "" while it can be."""
        try:
            check(self._matcher)
        except GrammarError as error:
            return str(error)
        return ""

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
    """Compiles grammars for one model in threads, as a large schema takes so long as many steps."""

    def __init__(self, folder: Path, vocab_size: int, eos_token_ids: Collection[int]) -> None:
        self._compiler = GrammarCompiler(folder, vocab_size, eos_token_ids)
        self._compiled: OrderedDict[bytes, Future[LLMatcher]] = OrderedDict()

    def compile(self, grammar: str) -> Future[LLMatcher]:
        """The future raises GrammarError or CheckpointError."""
        key = hashlib.sha256(grammar.encode()).digest()
        future = self._compiled.pop(key, None) or self._threads.submit(self._compiler.compile, grammar)
        self._compiled[key] = future
        if len(self._compiled) > KEPT:
            self._compiled.popitem(last=False)
        return future

    def begin(self, compiled: Future[LLMatcher]) -> Constraint:
        """The beginning of an answer, once `compiled` is done. Raises as it does."""
        return Constraint(compiled.result().deep_copy(), -(-self._compiler.tokenizer.vocab_size // 32))

    @cached_property
    def _threads(self) -> ThreadPoolExecutor:
        return ThreadPoolExecutor(THREADS, thread_name_prefix="grammars")
