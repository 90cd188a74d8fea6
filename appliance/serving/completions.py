"""`POST /v1/completions`: text or token ids go on as the model sees fit."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from typing import Any

from litestar import Request, post

from appliance.serving.access import key_of
from appliance.serving.answer_format import TokenTexts, chunk_usage, finish_reason, new_id, usage
from appliance.serving.answering import Answering, Ask
from appliance.serving.body import read_body
from appliance.serving.choice import Choice, Piece
from appliance.serving.errors import bad_request
from appliance.serving.fields import read_fields
from appliance.serving.openapi.answers import TextCompletion
from appliance.serving.parts import TheFrontDoor
from appliance.serving.prompts import Prompts, check_prompts, encode_prompts
from appliance.serving.respond import GENERATING, Answer, Answered, respond
from appliance.serving.sampling import MAX_CHOICES, Alternatives, Count, SamplingFields, check_logprobs, check_sampling
from appliance.serving.served_model import NO_ECHO, Echo, ServedModel
from appliance.serving.stream import DONE, HEARTBEAT, frame
from appliance.serving.structured import Form, wanted_form

DEFAULT_MAX_TOKENS = 16
MAX_PROMPTS = 128
MAX_SCORES = 1 << 17  # log probabilities of prompts in one answer: of 8,192 tokens, 15 alternatives each


class CompletionFields(SamplingFields, frozen=True, kw_only=True):
    prompt: Prompts
    max_tokens: Count | None = None  # none but the prompt's own, with `echo`
    echo: bool | None = None
    logprobs: Alternatives | None = None
    add_special_tokens: bool | None = None
    return_tokens_as_token_ids: bool | None = None


@post(
    "/v1/completions",
    status_code=200,
    summary="Continue texts",
    body=CompletionFields,
    answer=TextCompletion,
    streams=True,
    errors=GENERATING,
)
async def completions(request: Request[Any, Any, Any], front_door: TheFrontDoor) -> Answered:
    client, model = front_door.serving()
    fields, ignored = await read_fields(await read_body(request), CompletionFields, strict=model.strict_requests)
    model.check_name(fields.model)
    ask = await completion_ask(fields, model)
    echoes = await model.echoes(ask.prompts) if fields.echo else [NO_ECHO] * len(ask.prompts)
    answering = Answering(client, model, front_door.metrics, ask, key_of(request))
    answer = CompletionAnswer(model, ask, fields, echoes)
    return await respond(request, answering, answer, stream=fields.stream, headers=ignored.headers)


async def completion_ask(fields: CompletionFields, model: ServedModel) -> Ask:
    """Raises ApiError that names the field."""
    form = check_completion(fields)
    special = fields.add_special_tokens is not False
    prompts = await encode_prompts(fields.prompt, "prompt", model, most=MAX_PROMPTS, add_special_tokens=special)
    if fields.echo and fields.logprobs is not None:
        _check_scores(prompts, fields.logprobs, fields.n or 1)
    room = [model.room(len(prompt), fields.max_tokens, "prompt") for prompt in prompts]
    usual = model.sampling_defaults.get("max_tokens", DEFAULT_MAX_TOKENS)
    wanted = int(usual if fields.max_tokens is None else fields.max_tokens)
    return Ask(
        prompts=prompts,
        fields=fields,
        max_tokens=[min(wanted, each) for each in room],
        logprobs=fields.logprobs,
        prompt_logprobs=fields.logprobs if fields.echo else None,
        grammar=await model.grammar(form) if form else None,
        form_param=form.param if form else None,
    )


def check_completion(fields: CompletionFields) -> Form | None:
    """All that no model need be asked for; the form of the answer. Raises ApiError."""
    check_sampling(fields)
    check_logprobs(fields.logprobs, "logprobs")
    if fields.max_tokens == 0 and not fields.echo:
        raise bad_request("max_tokens: 0 is too small; use 1 or more, or 0 with echo.", "max_tokens")
    if len(check_prompts(fields.prompt, "prompt", MAX_PROMPTS)) * (fields.n or 1) > MAX_CHOICES:
        raise bad_request(
            f"n: the prompts times n make more than {MAX_CHOICES} answers; send fewer prompts or a smaller n.", "n"
        )
    return wanted_form(fields)


def _check_scores(prompts: list[list[int]], alternatives: int, n: int) -> None:
    """Raises ApiError for an echo that others would have to wait for."""
    tokens = sum(map(len, prompts))
    count = tokens * (alternatives + 1) * n
    if count > MAX_SCORES:
        message = (
            f"logprobs: an echo of {tokens:,} tokens with {alternatives} alternatives each, in {n} choices, has "
            f"{count:,} log probabilities; {MAX_SCORES:,} are allowed. Use fewer alternatives, a smaller n, or shorter "
            "or fewer prompts."
        )
        raise bad_request(message, "logprobs")


class CompletionAnswer(Answer):
    """Writes answers in the form of /v1/completions. `echoes` are the prompts as texts."""

    def __init__(self, model: ServedModel, ask: Ask, fields: CompletionFields, echoes: list[Echo]) -> None:
        self._ask = ask
        self._fields = fields
        self._texts = TokenTexts(model, as_ids=bool(fields.return_tokens_as_token_ids))
        self._echoes = echoes
        self._scores: dict[int, dict[str, list[Any]]] = {}  # by prompt
        self._head = {
            "id": new_id("cmpl"),
            "object": "text_completion",
            "created": int(time.time()),
            "model": model.name,
        }

    def whole(self, choices: list[Choice], pieces: list[Piece]) -> dict[str, Any]:
        written = [self._choice(choice, piece, first=True) for choice, piece in zip(choices, pieces, strict=True)]
        return {**self._head, "choices": written, "usage": usage(self._ask.prompts, choices)}

    async def frames(self, answering: Answering) -> AsyncIterator[bytes]:
        try:
            choices = answering.choices
            begun: set[int] = set()
            async for came in answering.pieces():
                if came is None:
                    yield HEARTBEAT
                    continue
                choice, piece = came
                first = choice.index not in begun
                begun.add(choice.index)
                written = self._choice(choice, piece, first=first)
                yield frame({**self._head, "choices": [written], **chunk_usage(self._fields, choice)})
            last = b""
            if self._fields.include_usage:
                last = frame({**self._head, "choices": [], "usage": usage(self._ask.prompts, choices)})
            yield last + DONE
        finally:
            answering.close()

    def _choice(self, choice: Choice, piece: Piece, *, first: bool) -> dict[str, Any]:
        echo = self._echoes[self._prompt(choice)]
        written = {
            "index": choice.index,
            "text": (echo.text if first else "") + piece.text,
            "logprobs": self._logprobs(choice, piece, echo, first=first) if self._ask.logprobs is not None else None,
            "finish_reason": finish_reason(piece),
        }
        if self._fields.return_token_ids:
            written["token_ids"] = piece.token_ids
            if first:
                written["prompt_token_ids"] = choice.prompt_token_ids
        return written

    def _prompt(self, choice: Choice) -> int:
        return choice.index // (self._fields.n or 1)

    def _logprobs(self, choice: Choice, piece: Piece, echo: Echo, *, first: bool) -> dict[str, list[Any]]:
        texts = self._texts
        written: dict[str, list[Any]] = {
            "tokens": [texts(entry.token_id) for entry in piece.logprobs],
            "token_logprobs": [entry.logprob for entry in piece.logprobs],
            "top_logprobs": [
                _with_own({texts(token): logprob for token, logprob in entry.top}, texts(entry.token_id), entry.logprob)
                for entry in piece.logprobs
            ],
            "text_offset": [len(echo.text) + offset for offset in piece.offsets],
        }
        if not first or not echo.offsets:
            return written
        prompt = self._prompt(choice)
        if prompt not in self._scores:
            self._scores[prompt] = self._prompt_scores(choice, echo)
        return {name: [*scores, *written[name]] for name, scores in self._scores[prompt].items()}

    def _prompt_scores(self, choice: Choice, echo: Echo) -> dict[str, list[Any]]:
        scores, texts = choice.prompt_logprobs, self._texts
        width = scores.num_alternatives
        tokens = list(map(texts, choice.prompt_token_ids))
        top = list(zip(map(texts, scores.top_token_ids), scores.top_logprobs, strict=True))
        tops = (dict(top[at * width : (at + 1) * width]) for at in range(len(scores.logprobs)))
        return {
            "tokens": tokens,
            "token_logprobs": [None, *scores.logprobs],  # nothing comes before the first token
            "top_logprobs": [None, *map(_with_own, tops, tokens[1:], scores.logprobs)],
            "text_offset": echo.offsets,
        }


def _with_own(top: dict[str, float], token: str, logprob: float) -> dict[str, float]:
    """The best alternatives, and the token itself where it is none of them: one more than was asked for, as OpenAI's
    API has it."""
    top.setdefault(token, logprob)
    return top
