"""A request inside the engine, and a sequence of its tokens in the cache. Plain data: no torch."""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from appliance.core_protocol import (
    BIAS_LIMITS,
    MAX_BIASES,
    SAMPLING_LIMITS,
    FinishReason,
    Pooling,
    PromptLogprobs,
    SamplingParams,
)
from appliance.engine.speculation.acceptance import Acceptance

if TYPE_CHECKING:
    from appliance.engine.grammar import Constraint, Mask
    from appliance.engine.thinking import Thinking


@dataclass(slots=True)
class Pages:
    """What a sequence holds of a pool: the pages `ids` of its blocks `first`, `first` + 1, ... It has let go of those
    before, which no token to come sees."""

    first: int
    ids: list[int]

    @property
    def end(self) -> int:
        """One behind its last block."""
        return self.first + len(self.ids)


@dataclass(slots=True, eq=False)
class Request:
    """One prompt and what has been generated for it.

    `num_computed_tokens` counts the tokens whose keys and values are in the cache, or are being computed by a launched
    step; it falls back to zero when the request is preempted, and its tokens are then computed again. `num_unread`
    counts the tokens that launched steps sample and whose ids only the device knows yet; they follow the output.
    """

    request_id: str
    prompt_token_ids: list[int]
    sampling: SamplingParams
    seed: int
    priority: int = 0
    cache_salt: str = ""  # prompts of another salt are not found in the prefix cache
    probe: bool = False  # the appliance's own; left out of the load
    pooling: Pooling | None = None  # it wants an embedding, and no tokens
    constraint: Constraint | None = None  # where its answer stands in its grammar
    thinking: Thinking | None = None  # where its answer stands in its reasoning, if that is bounded
    arrival: int = 0  # order of arrival
    output_token_ids: list[int] = field(default_factory=list)
    pages: list[Pages] = field(default_factory=list)  # of each pool, while it runs
    block_hashes: list[bytes] = field(default_factory=list)
    slot: int = -1  # its place among the running requests, 0 .. max_num_seqs - 1; -1 while it waits
    admission: int = -1  # grows with each admission: a new number means new blocks
    num_computed_tokens: int = 0
    num_unread: int = 0
    num_published_blocks: int = 0  # its leading blocks that the prefix cache may know
    loads: int | None = None  # the row of states that it begins from, until a step of it is launched
    borders: list[int] = field(default_factory=list)  # numbers of tokens at which its state is to be copied, ascending
    saving: dict[int, int] = field(default_factory=dict)  # by such a number, the row of a copy that is not read yet
    num_forks: int = 0  # of its borders, those for others that fork off
    num_replayed: int = 0  # of its last computed tokens, those that were drafts, which its state is still to take
    last_copy: bytes = b""  # the hash of the furthest copy of its state, its own or what it began from
    num_cached_tokens: int = 0  # of the prompt, found in the prefix cache when it was first admitted
    was_admitted: bool = False
    prompt_logprobs: PromptLogprobs = field(default_factory=PromptLogprobs)
    pooled: array[float] = field(default_factory=lambda: array("f"))  # what is known of its embedding
    acceptance: Acceptance = field(default_factory=lambda: Acceptance(window=32, pause=128))  # of its drafts
    predicted: tuple[int, int] | None = None  # by the model's head: behind so many of its tokens comes this one
    lookup: str = ""  # its tokens as characters, as far as drafts were looked up in them
    submitted_at: float = 0.0  # on the engine's monotonic clock
    launched_at: float | None = None  # its first step
    is_plain: bool = field(init=False)  # each step takes the largest raw logit, without logprobs
    stop_token_ids: frozenset[int] = field(init=False)

    def __post_init__(self) -> None:
        self.stop_token_ids = frozenset(self.sampling.stop_token_ids)
        unchanged = not self.has_penalties and self.sampling.min_tokens == 0
        masked = self.sampling.grammar is not None or self.sampling.thinking is not None
        steered = masked or bool(self.sampling.logit_bias)
        self.is_plain = self.is_greedy and unchanged and not steered and self.sampling.logprobs is None

    @property
    def is_running(self) -> bool:
        """It has a slot, and pages."""
        return self.slot >= 0

    @property
    def blocks(self) -> Iterator[tuple[int, int]]:
        """All that it holds, each with the number of its pool."""
        return ((pool, block) for pool, pages in enumerate(self.pages) for block in pages.ids)

    @property
    def is_greedy(self) -> bool:
        # Top-k keeps all equally likely tokens; top_k 1 should always give the same one.
        return self.sampling.temperature == 0 or self.sampling.top_k == 1

    @property
    def has_penalties(self) -> bool:
        params = self.sampling
        return bool(params.presence_penalty or params.frequency_penalty or params.repetition_penalty != 1)

    @property
    def num_tokens(self) -> int:
        return len(self.prompt_token_ids) + len(self.output_token_ids)

    @property
    def num_pending_tokens(self) -> int:
        """Tokens that are not computed yet: the rest of the prompt, or the last sampled token, be it read or not."""
        return len(self.prompt_token_ids) + self.num_sampled - self.num_computed_tokens

    @property
    def num_sampled(self) -> int:
        """Tokens of the output, be they read or not."""
        return len(self.output_token_ids) + self.num_unread

    @property
    def may_not_end(self) -> bool:
        """The next token may not be one that would end it."""
        return self.num_sampled < self.sampling.min_tokens

    @property
    def wants_prompt_scores(self) -> bool:
        """Its prompt has to be computed, all of it, as some token's probability is not known yet."""
        wanted = self.sampling.prompt_logprobs is not None
        return wanted and len(self.prompt_logprobs.logprobs) < len(self.prompt_token_ids) - 1

    @property
    def needs_whole_prompt(self) -> bool:
        """Cached or not, its whole prompt has to be computed."""
        return self.wants_prompt_scores or self.pooling == "mean"

    @property
    def needs_its_tokens(self) -> bool:
        """The host must have read all sampled tokens before it can say how the next one is to be sampled."""
        if self.has_penalties or self.may_not_end or self.constraint is not None:
            return True
        return self.thinking is not None and self.thinking.may_force(self.num_unread)

    @property
    def mask(self) -> Mask | None:
        """Which tokens may come next, once all sampled ones are read; None where any may."""
        if self.thinking is not None and self.thinking.forced is not None:
            return self.thinking
        return self.constraint

    def awaits_its_last(self, max_model_len: int) -> bool:
        """It ends with a token that is being sampled, whichever that is."""
        length = len(self.prompt_token_ids) + self.num_sampled
        return self.num_unread > 0 and (self.num_sampled >= self.sampling.max_tokens or length >= max_model_len)

    def tokens(self, start: int, end: int) -> list[int]:
        """Token ids `start` .. `end` - 1 of prompt and output together, without those that are not read yet."""
        split = len(self.prompt_token_ids)
        if end <= split:
            return self.prompt_token_ids[start:end]
        if start >= split:
            return self.output_token_ids[start - split : end - split]
        return self.prompt_token_ids[start:] + self.output_token_ids[: end - split]

    def accept(self, token_id: int, eos_token_ids: frozenset[int], max_model_len: int) -> FinishReason | None:
        """Append a sampled token; returns the finish reason if the request ends with it, or None."""
        self.output_token_ids.append(token_id)
        if self.thinking is not None:
            self.thinking.accept(token_id)
        params = self.sampling
        # The stop token itself does not count.
        if self.stops_at(token_id, eos_token_ids) and len(self.output_token_ids) > params.min_tokens:
            return FinishReason.STOP
        if self.constraint is not None:
            self.constraint.accept(token_id)
            if self.constraint.is_complete:
                return FinishReason.STOP
        if len(self.output_token_ids) >= params.max_tokens or self.num_tokens >= max_model_len:
            return FinishReason.LENGTH
        return None

    def stops_at(self, token_id: int, eos_token_ids: frozenset[int]) -> bool:
        return token_id in self.stop_token_ids or (token_id in eos_token_ids and not self.sampling.ignore_eos)


def sampling_refusal(params: SamplingParams, vocab_size: int, eos_token_ids: frozenset[int]) -> str | None:
    """Why these parameters are invalid, or None. The front door checks this first, but it is not relied on."""
    for name, (least, most) in SAMPLING_LIMITS.items():
        value = getattr(params, name)
        if not least <= value <= most:  # also false for NaN
            return f"{name} is {value}; use {least:,} to {most:,}"
    least, most = BIAS_LIMITS
    if len(params.logit_bias) > MAX_BIASES:
        return f"logit_bias has {len(params.logit_bias):,} tokens; use {MAX_BIASES} or fewer"
    for token_id, bias in params.logit_bias.items():
        if not 0 <= token_id < vocab_size:
            return f"logit_bias: {token_id:,} is not in the vocabulary; use 0 to {vocab_size - 1:,}"
        if not least <= bias <= most:
            return f"logit_bias.{token_id} is {bias}; use {least:g} to {most:g}"
    if params.min_tokens > 0:
        allowed = set(range(vocab_size)).difference(eos_token_ids, params.stop_token_ids)
        if not allowed:
            return (
                f"with min_tokens {params.min_tokens:,}, stop_token_ids and the end tokens forbid every token; "
                "use fewer stop_token_ids, or min_tokens 0"
            )
    return None
