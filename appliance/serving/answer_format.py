"""Parts that the answers of chat and completions share: usage, finish reasons, logprobs."""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from typing import Any

from appliance.core_protocol import FinishReason, TokenLogprob
from appliance.serving.choice import Choice, Piece
from appliance.serving.sampling import SamplingFields
from appliance.serving.served_model import ServedModel


def new_id(prefix: str) -> str:
    return f"{prefix}-{secrets.token_hex(16)}"


def usage(prompts: Sequence[Sequence[int]], choices: Sequence[Choice]) -> dict[str, Any]:
    """Every prompt counts once, however often it was answered."""
    prompt_tokens = sum(map(len, prompts))
    completion_tokens = sum(choice.num_tokens for choice in choices)
    each = max(len(choices) // len(prompts), 1)
    cached = sum(choice.num_cached_tokens for choice in choices[::each])
    return {
        "prompt_tokens": prompt_tokens,
        "completion_tokens": completion_tokens,
        "total_tokens": prompt_tokens + completion_tokens,
        "prompt_tokens_details": {"cached_tokens": cached},
        "completion_tokens_details": {"reasoning_tokens": sum(choice.reasoning_tokens for choice in choices)},
    }


def chunk_usage(fields: SamplingFields, choice: Choice) -> dict[str, Any]:
    """What a chunk of a stream says of the usage: none yet, or that of its choice so far."""
    if not fields.include_usage:
        return {}
    options = fields.stream_options
    so_far = options is not None and options.continuous_usage_stats
    return {"usage": usage([choice.prompt_token_ids], [choice]) if so_far else None}


def finish_reason(piece: Piece) -> str | None:
    return None if piece.finish_reason is None else FinishReason(piece.finish_reason).value


class TokenTexts:
    """The text of single tokens, as logprobs show them; each is decoded once. Several tokens may have the same text:
    `as_ids`, each is `token_id:` and its id instead, as vLLM writes it."""

    def __init__(self, model: ServedModel, *, as_ids: bool = False) -> None:
        self._model = model
        self._as_ids = as_ids
        self._texts: dict[int, str] = {}

    def __call__(self, token_id: int) -> str:
        if self._as_ids:
            return f"token_id:{token_id}"
        if token_id not in self._texts:
            self._texts[token_id] = self._model.tokenizer.decode_window([token_id])
        return self._texts[token_id]

    def described(self, entry: TokenLogprob, *, with_ids: bool = False) -> dict[str, Any]:
        """A token's logprob and the best alternatives. Several tokens may have the same text: `with_ids`, clients can
        compare them."""
        top = [self._token(token_id, logprob, with_ids) for token_id, logprob in entry.top]
        return {**self._token(entry.token_id, entry.logprob, with_ids), "top_logprobs": top}

    def _token(self, token_id: int, logprob: float, with_id: bool) -> dict[str, Any]:
        text = self(token_id)
        # Part of a character has no text of its own, and its bytes are not known here.
        known = "\ufffd" not in text
        written = {"token": text, "logprob": logprob, "bytes": list(text.encode()) if known else None}
        return {**written, "token_id": token_id} if with_id else written
