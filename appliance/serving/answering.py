"""All choices of one request: started, read as they arrive, and always released."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Coroutine
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec
from litestar import Request

from appliance.core_protocol import SamplingParams
from appliance.engine_client.client import CoreClient
from appliance.engine_process.errors import EngineGoneError, TooManyRequestsError
from appliance.serving.choice import Choice, Piece
from appliance.serving.errors import ApiError, ClientGoneError, bad_request, engine_gone
from appliance.serving.reading import Reading
from appliance.serving.sampling import SamplingFields, sampling_params
from appliance.serving.served_model import ServedModel
from appliance.serving.silence import Silence
from appliance.thinking_budget import ThinkingBudget

if TYPE_CHECKING:
    from appliance.serving.metrics import Metrics
    from appliance.serving.stopwatch import Stopwatch

T = TypeVar("T")

NO_TOKENS: frozenset[int] = frozenset()
SOON = {"Retry-After": "1"}
MAX_WHOLE_LOGPROBS = 1 << 20
"""Log probabilities in an answer that is not streamed: as objects they take some 150 MB, and as JSON 70."""


class Ask(msgspec.Struct, frozen=True, kw_only=True):
    """What a request comes down to: prompts as token ids, each to be answered `n` times."""

    prompts: list[list[int]]
    fields: SamplingFields
    max_tokens: list[int]  # for each prompt; 0 for the prompt alone
    logprobs: int | None = None
    logprobs_param: str = "logprobs"
    prompt_logprobs: int | None = None  # alternatives of each of a prompt's tokens
    grammar: str | None = None
    form_param: str | None = None  # the field that the grammar comes from, as the client has named it
    thinking: ThinkingBudget | None = None
    reading: Reading | None = None


class Answering:
    """`key_id` names the API key that asks, "" for none. `close` it, whatever happens: then every slot in the core is
    free again."""

    def __init__(self, client: CoreClient, model: ServedModel, metrics: Metrics, ask: Ask, key_id: str = "") -> None:
        self.choices: list[Choice] = []
        self.has_logprobs = ask.logprobs is not None or ask.prompt_logprobs is not None
        self._logprobs_param = ask.logprobs_param
        self._client = client
        self._arrived = asyncio.Event()
        self._watches: list[Stopwatch] = []
        fields, reading = ask.fields, ask.reading
        stops = fields.stops
        salt = model.cache_salt(key_id, fields.cache_salt)
        n = fields.n or 1
        params = [
            (prompt, room, self._sampling(ask, model, choice, room))
            for prompt, room in zip(ask.prompts, ask.max_tokens, strict=True)
            for choice in range(n)
        ]
        try:
            for index, (prompt, room, sampling) in enumerate(params):
                watch = metrics.stopwatch(len(prompt), model.name, key_id)
                generation = client.start(
                    prompt,
                    sampling,
                    priority=fields.priority or 0,
                    cache_salt=salt,
                    arrived=self._arrived,
                    watch=watch,
                )
                watch.accepted()
                self._watches.append(watch)
                skip_special = fields.skip_special_tokens is not False
                marker_ids = model.marker_ids if reading is not None and reading.keeps_special else NO_TOKENS
                detokenizer = model.detokenizer(prompt, skip_special_tokens=skip_special, kept=marker_ids)
                self.choices.append(
                    Choice(
                        index,
                        generation,
                        detokenizer,
                        prompt_token_ids=prompt,
                        max_tokens=room,
                        stops=stops,
                        min_tokens=sampling.min_tokens,
                        scored_by=self._scored_by(ask, index - index % n),
                        reader=reading.reader() if reading is not None else None,
                        marker_ids=marker_ids if skip_special else NO_TOKENS,
                        form_param=ask.form_param,
                    )
                )
        except TooManyRequestsError as error:
            self.close()
            raise too_many(error) from None
        except EngineGoneError as error:
            self.close()
            raise engine_gone(str(error)) from None

    async def pieces(self) -> AsyncIterator[tuple[Choice, Piece] | None]:
        """Pieces of any choice as they arrive; None after each HEARTBEAT_S of silence. Raises ApiError."""
        open_choices = list(self.choices)
        with Silence(self._arrived) as silence:
            while open_choices:
                self._arrived.clear()
                came = False
                for choice in open_choices:
                    if choice.waits_for_scores:
                        continue
                    if (piece := self._take(choice)) is not None:
                        came = True
                        yield choice, piece
                open_choices = [choice for choice in open_choices if not choice.finished]
                if came:
                    silence.ended()
                elif silence.is_long:
                    yield None
                    silence.ended()
                else:
                    await self._arrived.wait()

    async def whole(self) -> list[Piece]:
        """Every choice to its end, in order. Raises ApiError, also where their logprobs are more than one answer may
        hold."""
        whole = [Piece() for _ in self.choices]
        num_logprobs = 0
        async for came in self.pieces():
            if came is None:
                continue
            choice, piece = came
            num_logprobs += sum(1 + len(entry.top) for entry in piece.logprobs)
            if num_logprobs > MAX_WHOLE_LOGPROBS:
                raise _too_many_logprobs(self._logprobs_param)
            whole[choice.index].add(piece)
        return whole

    def close(self) -> None:
        for choice in self.choices:
            watch = self._watches[choice.index]
            if not watch.ended and choice.generation.failed:
                watch.failed()
            elif not watch.ended:
                watch.aborted()
            self._client.release(choice.generation)
        self.choices = []

    def _take(self, choice: Choice) -> Piece | None:
        watch = self._watches[choice.index]
        try:
            piece = choice.take()
        except EngineGoneError as error:
            raise engine_gone(str(error)) from None
        except ApiError:
            watch.failed()
            raise
        if piece is not None:
            watch.read(len(piece.token_ids))
            if piece.finish_reason is not None:
                # A stop string ends the answer here: tell the core now, not when the reader continues.
                self._client.release(choice.generation)
                watch.finished(piece.finish_reason, choice.num_cached_tokens)
        return piece

    def _scored_by(self, ask: Ask, first: int) -> Choice | None:
        """The first choice of the same prompt, for those after it."""
        return self.choices[first] if ask.prompt_logprobs is not None and first < len(self.choices) else None

    @staticmethod
    def _sampling(ask: Ask, model: ServedModel, choice: int, room: int) -> SamplingParams:
        """A prompt is scored once, for its first choice."""
        return sampling_params(
            ask.fields,
            model.sampling_defaults,
            max_tokens=room,
            logprobs=ask.logprobs,
            prompt_logprobs=ask.prompt_logprobs if choice == 0 else None,
            grammar=ask.grammar,
            thinking=ask.thinking,
            choice=choice,
            vocab_size=model.vocab_size,
            eos_token_ids=model.eos_token_ids,
        )


def _too_many_logprobs(param: str) -> ApiError:
    message = (
        f"{param}: the answer came to more than {MAX_WHOLE_LOGPROBS:,} log probabilities. Stream it, or ask for fewer "
        "alternatives, fewer tokens or a smaller n."
    )
    return bad_request(message, param)


def too_many(error: TooManyRequestsError) -> ApiError:
    return ApiError(429, f"Too many requests: {error}.", code="too_many_requests", headers=SOON)


async def whole_unless_gone(request: Request[Any, Any, Any], answering: Answering) -> list[Piece]:
    try:
        return await unless_gone(request, answering.whole())
    finally:
        answering.close()


async def unless_gone(request: Request[Any, Any, Any], coming: Coroutine[Any, Any, T]) -> T:
    """What comes; raises ClientGoneError as soon as the client disconnects."""
    answer = asyncio.ensure_future(coming)
    gone = asyncio.ensure_future(_disconnected(request))
    try:
        await asyncio.wait({answer, gone}, return_when=asyncio.FIRST_COMPLETED)
        if not answer.done():
            raise ClientGoneError
        return answer.result()
    finally:
        answer.cancel()
        gone.cancel()


async def _disconnected(request: Request[Any, Any, Any]) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass
