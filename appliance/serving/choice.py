"""One answer as it grows: the core's token ids become text, stop strings are found, and the text is read for reasoning
and tool calls where the model writes such."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

import msgspec

from appliance.core_protocol import FinishReason, PromptLogprobs, TokenLogprob, TokenOutput
from appliance.engine_client.client import Generation
from appliance.serving.errors import ApiError, bad_request
from appliance.serving.parsers.base import CallDelta, Delta
from appliance.serving.stop_strings import StopStrings

if TYPE_CHECKING:
    from appliance.checkpoint.tokenizer import IncrementalDetokenizer
    from appliance.serving.reading import AnswerReader


class Piece(msgspec.Struct, kw_only=True):
    """What came since the last piece. `offsets` are where each token's text begins in the whole answer. Of the tokens,
    the first `reasoned` end with its reasoning."""

    text: str = ""
    reasoning: str = ""
    calls: list[CallDelta] = []
    token_ids: list[int] = []
    logprobs: list[TokenLogprob] = []
    offsets: list[int] = []
    reasoned: int = 0
    finish_reason: FinishReason | None = None

    def add(self, later: Piece) -> None:
        if later.reasoned:
            self.reasoned = len(self.token_ids) + later.reasoned
        self.text += later.text
        self.reasoning += later.reasoning
        self._add_calls(later.calls)
        self.token_ids += later.token_ids
        self.logprobs += later.logprobs
        self.offsets += later.offsets
        self.finish_reason = later.finish_reason

    def add_delta(self, delta: Delta) -> None:
        self.text += delta.content
        self.reasoning += delta.reasoning
        self._add_calls(delta.calls)

    def _add_calls(self, calls: list[CallDelta]) -> None:
        """Clients may read only the first part of a call in each delta: there is one."""
        for call in calls:
            if self.calls and self.calls[-1].index == call.index:
                self.calls[-1].arguments += call.arguments
            else:
                self.calls.append(call)


class Choice:
    def __init__(
        self,
        index: int,
        generation: Generation,
        detokenizer: IncrementalDetokenizer,
        *,
        prompt_token_ids: Sequence[int],
        max_tokens: int,
        stops: Sequence[str],
        min_tokens: int = 0,
        scored_by: Choice | None = None,
        reader: AnswerReader | None = None,
        marker_ids: frozenset[int] = frozenset(),
        form_param: str | None = None,
    ) -> None:
        """Without a `reader`, the text is content as it stands. `marker_ids` are special tokens that may be markers for
        it, and are no part of the text otherwise. `scored_by` is the choice with the scores of their prompt, if that is
        another, and `form_param` the field with the form of the answer."""
        self.index = index
        self.generation = generation
        self.prompt_token_ids = prompt_token_ids
        self._prompt_logprobs: PromptLogprobs | None = None
        self._scored_by = scored_by
        self.num_tokens = 0
        self.num_cached_tokens = 0
        self.finished = False
        self.first_token_at: float | None = None
        """By `time.perf_counter`."""
        self._detokenizer = detokenizer
        self._stops = StopStrings(stops)
        self._max_tokens = max_tokens
        self._min_tokens = min_tokens
        self._reader = reader
        self._marker_ids = marker_ids
        self._form_param = form_param
        self._text_length = 0

    @property
    def prompt_logprobs(self) -> PromptLogprobs:
        """Of a prompt that was to be scored, once there is a first piece."""
        scores = (self._scored_by or self)._prompt_logprobs
        assert scores is not None
        return scores

    @property
    def waits_for_scores(self) -> bool:
        return self._scored_by is not None and self._scored_by.first_token_at is None

    @property
    def called(self) -> bool:
        """Whether the answer has tool calls, of which the last is complete too."""
        return self._reader is not None and self._reader.called

    @property
    def stop_string(self) -> str | None:
        """The one that has ended the answer."""
        return self._stops.matched

    @property
    def reasoning_tokens(self) -> int:
        return 0 if self._reader is None else self._reader.reasoning_tokens

    def take(self) -> Piece | None:
        """Without waiting; None when nothing has come. Raises EngineGoneError, or ApiError when the core could not
        run this request."""
        output = self.generation.take()
        return None if output is None else self._read(output)

    def _read(self, output: TokenOutput) -> Piece:
        if output.finish_reason is FinishReason.ERROR:
            raise run_error(output, self._form_param)
        self.first_token_at = self.first_token_at or time.perf_counter()
        self.num_cached_tokens = max(self.num_cached_tokens, output.num_cached_tokens)
        self._prompt_logprobs = self._prompt_logprobs or output.prompt_logprobs
        if self._max_tokens == 0:
            self.finished = True
            return Piece(finish_reason=FinishReason.LENGTH)
        piece = Piece()
        text: list[str] = []
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
            released = self._push(self._detokenizer.push((token_id,)))
            self._give(piece, text, released, special=token_id in self._marker_ids)
            if self._reader is not None and self._reader.reasons:
                piece.reasoned = len(piece.token_ids)
            if self._cut_short:
                break
        piece.finish_reason = output.finish_reason
        if piece.finish_reason is not None and not self._cut_short:
            self._give(piece, text, self._push(self._detokenizer.finish()), of_token=False)
            if not self._cut_short:
                self._give(piece, text, self._stops.finish(), of_token=False)
        if self._cut_short:
            piece.finish_reason = FinishReason.STOP
        self.finished = piece.finish_reason is not None
        if self._reader is None:
            piece.text = "".join(text)
        elif self.finished:
            piece.add_delta(self._reader.finish())
        return piece

    def _give(
        self, piece: Piece, text: list[str], released: str, *, special: bool = False, of_token: bool = True
    ) -> None:
        if self._reader is None:
            text.append(released)
        else:
            piece.add_delta(self._reader.push(released, special=special, of_token=of_token))

    @property
    def _cut_short(self) -> bool:
        """Whether the answer ends here, whatever the model goes on to say."""
        return self._stops.matched is not None or (self._reader is not None and self._reader.full)

    def _push(self, text: str) -> str:
        self._text_length += len(text)
        if self.num_tokens <= self._min_tokens:
            return text  # no stop string may end the answer yet
        return self._stops.push(text)


def run_error(output: TokenOutput, form_param: str | None = None) -> ApiError:
    """Of a request that the core could not run; `form_param` names the field with the grammar, if it has one."""
    message = f"The engine could not run this request: {output.error}."
    if output.is_refusal and form_param is not None:
        return bad_request(message, form_param, "invalid_grammar")
    return bad_request(message) if output.is_refusal else ApiError(500, message, code="engine_error")
