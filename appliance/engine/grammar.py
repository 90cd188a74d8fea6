"""What answers keep to, grammars and bounded reasoning: prepared beside the engine's loop, and turned into the tokens
that may come next."""

from __future__ import annotations

import hashlib
import time
from collections import OrderedDict
from collections.abc import Collection, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Final, Protocol

import numpy as np
from numpy.typing import NDArray

from appliance.checkpoint.grammar import GrammarCompiler, GrammarError, check
from appliance.core_protocol import SamplingParams
from appliance.engine.thinking import Thinking

if TYPE_CHECKING:
    from llguidance import LLMatcher

    from appliance.engine.request import Request

# So many compiled grammars are kept; the least recently used ones are dropped first.
KEPT: Final = 64
THREADS: Final = 2
# What a token of an answer may cost, in seconds of the processor, and what all that is above that may come to: others
# wait meanwhile. Common schemas take a tenth of a millisecond, ten thousand choices a few.
FREE_S: Final = 0.03
MOST_S: Final = 0.5


class Mask(Protocol):
    """Some of the tokens. `num_words` of 32 bits hold one bit for each of all."""

    num_words: int

    def fill(self, words: NDArray[np.int32]) -> None:
        """Set the bits of the tokens that may come next, and clear the others."""
        ...


class Constraint:
    """Where one answer stands in its grammar. A Mask."""

    def __init__(self, matcher: LLMatcher, num_words: int) -> None:
        self._matcher = matcher
        self.num_words = num_words
        self._spent_s = 0.0  # above what is free

    @property
    def is_complete(self) -> bool:
        """It has been followed to its end."""
        return bool(self._matcher.is_stopped()) and not self._matcher.is_error()

    @property
    def error(self) -> str:
        """Why the grammar can no longer be followed, such as a limit that it exceeds; "" while it can be."""
        if self._spent_s > MOST_S:
            return "it takes too long to find out which tokens may come next: the grammar is ambiguous or too large"
        try:
            check(self._matcher)
        except GrammarError as error:
            return str(error)
        return ""

    def accept(self, token_id: int) -> None:
        """`token_id` is the next token of the answer."""
        began = time.thread_time()
        self._matcher.consume_token(token_id)
        self._pay(time.thread_time() - began)

    def fill(self, words: NDArray[np.int32]) -> None:
        began = time.thread_time()
        self._matcher.unsafe_compute_mask_ptr(words.ctypes.data, words.nbytes)
        self._pay(time.thread_time() - began)

    def _pay(self, seconds: float) -> None:
        self._spent_s += max(seconds - FREE_S, 0)


def masks(of_rows: Sequence[tuple[int, Mask]]) -> NDArray[np.int32]:
    """As `SamplingBatch.allowed`, for rows and their masks."""
    found = np.zeros((len(of_rows), 1 + of_rows[0][1].num_words), dtype=np.int32)
    for words, (row, mask) in zip(found, of_rows, strict=True):
        words[0] = row
        mask.fill(words[1:])
    return found


class Grammars:
    """Compiles grammars for one model in threads, as a large schema takes as long as many steps; so does the tokenizer,
    which bounded reasoning needs, too."""

    def __init__(self, folder: Path, vocab_size: int, eos_token_ids: Collection[int]) -> None:
        self._compiler = GrammarCompiler(folder, vocab_size, eos_token_ids)
        self._compiled: OrderedDict[bytes, Future[LLMatcher | None]] = OrderedDict()

    def compile(self, grammar: str) -> Future[LLMatcher | None]:
        """The future raises GrammarError or CheckpointError."""
        key = hashlib.sha256(grammar.encode()).digest()
        future = self._compiled.pop(key, None) or self._threads.submit(self._compiler.compile, grammar)
        self._compiled[key] = future
        if len(self._compiled) > KEPT:
            self._compiled.popitem(last=False)
        return future

    def prepare(self, sampling: SamplingParams) -> Future[LLMatcher | None] | None:
        """What has to be done before an answer can be bound as `sampling` says; None for a free one."""
        if sampling.grammar is not None:
            return self.compile(sampling.grammar)
        return self._threads.submit(self._load_tokenizer) if sampling.thinking is not None else None

    def bind(self, request: Request, prepared: Future[LLMatcher | None]) -> None:
        """Put the request at the beginning of its answer, once `prepared` is done. Raises as that does."""
        matcher, tokenizer = prepared.result(), self._compiler.tokenizer
        num_words = -(-tokenizer.vocab_size // 32)
        if matcher is not None:
            request.constraint = Constraint(matcher.deep_copy(), num_words)
        if request.sampling.thinking is not None:
            request.thinking = Thinking(request.sampling.thinking, tokenizer.decode_bytes, num_words)

    def _load_tokenizer(self) -> None:
        _ = self._compiler.tokenizer

    @cached_property
    def _threads(self) -> ThreadPoolExecutor:
        return ThreadPoolExecutor(THREADS, thread_name_prefix="grammars")
