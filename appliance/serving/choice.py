"""One answer as it grows: the core's token ids become text, stop strings are found, logprobs get their words."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import msgspec

from appliance.engine_client.client import Generation
from appliance.protocol import FinishReason, TokenLogprob, TokenOutput
from appliance.serving.errors import ApiError
from appliance.serving.stop_strings import StopStrings

if TYPE_CHECKING:
    from appliance.checkpoint.tokenizer import IncrementalDetokenizer


class Piece(msgspec.Struct, kw_only=True):
    """What came since the last piece. `offsets` are where each token's text begins in the whole answer."""

    text: str = ""
    token_ids: list[int] = []
    logprobs: list[TokenLogprob] = []
    offsets: list[int] = []
    finish_reason: FinishReason | None = None

    def add(self, later: Piece) -> None:
        self.text += later.text
        self.token_ids += later.token_ids
        self.logprobs += later.logprobs
        self.offsets += later.offsets
        self.finish_reason = later.finish_reason


class Choice:
    def __init__(
        self,
        index: int,
        generation: Generation,
        detokenizer: IncrementalDetokenizer,
        *,
        prompt_token_ids: Sequence[int],
        stops: Sequence[str],
        min_tokens: int = 0,
    ) -> None:
        self.index = index
        self.generation = generation
        self.prompt_token_ids = prompt_token_ids
        self.num_tokens = 0
        self.num_cached_tokens = 0
        self.finished = False
        self._detokenizer = detokenizer
        self._stops = StopStrings(stops)
        self._min_tokens = min_tokens
        self._text_length = 0

    def take(self) -> Piece | None:
        """Without waiting; None when nothing has come. Raises EngineGoneError, or ApiError when the core could not
        run this request."""
        output = self.generation.take()
        return None if output is None else self._read(output)

    def _read(self, output: TokenOutput) -> Piece:
        if output.finish_reason is FinishReason.ERROR:
            raise ApiError(500, f"The engine could not run this request: {output.error}", code="engine_error")
        self.num_cached_tokens = max(self.num_cached_tokens, output.num_cached_tokens)
        piece = Piece()
        text = []
        last = len(output.token_ids) - 1
        for position, token_id in enumerate(output.token_ids):
            piece.token_ids.append(token_id)
            if output.logprobs:
                piece.logprobs.append(output.logprobs[position])
                piece.offsets.append(self._text_length)
            self.num_tokens += 1
            # The token that stopped the generation is not part of the text.
            if position == last and output.stop_token_id is not None:
                break
            text.append(self._push(self._detokenizer.push((token_id,))))
            if self._stops.matched is not None:
                break
        piece.finish_reason = output.finish_reason
        if self._stops.matched is not None:
            piece.finish_reason = FinishReason.STOP
        elif piece.finish_reason is not None:
            text.append(self._push(self._detokenizer.finish()))
            if self._stops.matched is not None:
                piece.finish_reason = FinishReason.STOP
            else:
                text.append(self._stops.finish())
        self.finished = piece.finish_reason is not None
        piece.text = "".join(text)
        return piece

    def _push(self, text: str) -> str:
        self._text_length += len(text)
        if self.num_tokens <= self._min_tokens:
            return text  # no stop string may end the answer yet
        return self._stops.push(text)
