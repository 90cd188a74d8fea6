"""A request inside the engine, and a sequence of its tokens in the cache. Plain data: no torch."""

from __future__ import annotations

from dataclasses import dataclass, field

from appliance.protocol import FinishReason, SamplingParams


@dataclass(slots=True, eq=False)
class Request:
    """One prompt and what has been generated for it.

    `num_computed_tokens` counts the tokens whose keys and values are in the cache; it falls back to zero when the
    request is preempted, and its tokens are then computed again.
    """

    request_id: str
    prompt_token_ids: list[int]
    sampling: SamplingParams
    seed: int
    priority: int = 0
    arrival: int = 0  # order of arrival
    output_token_ids: list[int] = field(default_factory=list)
    block_ids: list[int] = field(default_factory=list)
    block_hashes: list[bytes] = field(default_factory=list)
    slot: int = -1  # its place among the running requests, 0 .. max_num_seqs - 1; -1 while it waits
    admission: int = -1  # grows with each admission: a new number means new blocks
    num_computed_tokens: int = 0
    num_cached_tokens: int = 0  # of the prompt, found in the prefix cache when it was first admitted
    was_admitted: bool = False
    seen_tokens: dict[int, int] | None = None  # of a request with penalties: how often each stands in the output
    num_seen_outputs: int = 0  # how many of the output's tokens are counted in it

    @property
    def num_tokens(self) -> int:
        return len(self.prompt_token_ids) + len(self.output_token_ids)

    @property
    def num_pending_tokens(self) -> int:
        """Tokens that are known and not computed yet: the rest of the prompt, or the one drawn last."""
        return self.num_tokens - self.num_computed_tokens

    def tokens(self, start: int, end: int) -> list[int]:
        """Token ids `start` .. `end` - 1 of prompt and output together."""
        split = len(self.prompt_token_ids)
        if end <= split:
            return self.prompt_token_ids[start:end]
        if start >= split:
            return self.output_token_ids[start - split : end - split]
        return self.prompt_token_ids[start:] + self.output_token_ids[: end - split]

    def accept(self, token_id: int, eos_token_ids: frozenset[int], max_model_len: int) -> FinishReason | None:
        """Append a drawn token; the reason for which the request ends with it, or None."""
        self.output_token_ids.append(token_id)
        params = self.sampling
        stops = token_id in params.stop_token_ids or (token_id in eos_token_ids and not params.ignore_eos)
        if stops and len(self.output_token_ids) >= params.min_tokens:
            return FinishReason.STOP
        if len(self.output_token_ids) >= params.max_tokens or self.num_tokens >= max_model_len:
            return FinishReason.LENGTH
        return None
