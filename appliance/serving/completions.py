"""`POST /v1/completions`: text or token ids go on as the model sees fit."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from typing import Annotated, Any

from litestar import Request, Response, post
from litestar.response import Stream
from msgspec import Meta

from appliance.protocol import TokenLogprob
from appliance.serving.access import key_of
from appliance.serving.answer_format import TokenTexts, finish_reason, new_id, usage
from appliance.serving.answering import Answering, Ask
from appliance.serving.choice import Choice, Piece
from appliance.serving.errors import bad_request
from appliance.serving.fields import decode_request, read_body
from appliance.serving.front_door import FrontDoor
from appliance.serving.openapi.answers import TextCompletion
from appliance.serving.respond import GENERATING, Answer, respond
from appliance.serving.sampling import MAX_CHOICES, SamplingFields, check_logprobs
from appliance.serving.served_model import NO_ECHO, Echo, ServedModel
from appliance.serving.stream import DONE, HEARTBEAT, frame
from appliance.serving.structured import wanted_form

DEFAULT_MAX_TOKENS = 16
MAX_PROMPTS = 128

TokenId = Annotated[int, Meta(ge=0, le=1 << 31)]


class CompletionFields(SamplingFields, frozen=True, kw_only=True):
    prompt: str | list[str | TokenId | list[TokenId]]
    echo: bool | None = None
    logprobs: int | None = None
    add_special_tokens: bool | None = None


@post(
    "/v1/completions",
    status_code=200,
    summary="Continue texts",
    body=CompletionFields,
    answer=TextCompletion,
    streams=True,
    errors=GENERATING,
)
async def completions(request: Request[Any, Any, Any], front_door: FrontDoor) -> Stream | Response[dict[str, Any]]:
    client, model = front_door.serving()
    fields, ignored = decode_request(await read_body(request), CompletionFields, strict=model.strict_requests)
    model.check_name(fields.model)
    ask = await _ask(fields, model)
    answering = Answering(client, model, front_door.metrics, ask, key_of(request))
    answer = CompletionAnswer(model, ask, fields)
    return await respond(request, answering, answer, stream=fields.stream, headers=ignored.headers)


async def _ask(fields: CompletionFields, model: ServedModel) -> Ask:
    check_logprobs(fields.logprobs, "logprobs")
    prompts = [await _encode(prompt, fields, model, param) for prompt, param in _prompts(fields.prompt)]
    if len(prompts) * (fields.n or 1) > MAX_CHOICES:
        raise bad_request(
            f"n: the prompts times n make more than {MAX_CHOICES} answers; send fewer prompts or a smaller n.", "n"
        )
    room = [model.room(len(prompt), fields.max_tokens, "prompt") for prompt in prompts]
    wanted = fields.max_tokens or model.sampling_defaults.get("max_tokens", DEFAULT_MAX_TOKENS)
    return Ask(
        prompts=prompts,
        fields=fields,
        max_tokens=[min(int(wanted), each) for each in room],
        logprobs=fields.logprobs,
        prompt_logprobs=fields.logprobs if fields.echo else None,
        grammar=await model.grammar(form) if (form := wanted_form(fields)) else None,
    )


def _prompts(prompt: str | list[Any]) -> list[tuple[str | list[int], str]]:
    """The four spellings of OpenAI's API as one: prompts, each with the name of its field."""
    if isinstance(prompt, str):
        return [(prompt, "prompt")]
    kinds = {type(part) for part in prompt}
    if not prompt or len(kinds) > 1:
        raise bad_request("prompt is not valid; use a string, strings, token ids, or lists of token ids.", "prompt")
    if kinds == {int}:
        return [(prompt, "prompt")]
    if len(prompt) > MAX_PROMPTS:
        raise bad_request(f"prompt: {len(prompt):,} prompts are too many; send {MAX_PROMPTS} or fewer.", "prompt")
    return [(part, f"prompt[{index}]") for index, part in enumerate(prompt)]


async def _encode(prompt: str | list[int], fields: CompletionFields, model: ServedModel, param: str) -> list[int]:
    if isinstance(prompt, str):
        token_ids = await model.encode(prompt, param, add_special_tokens=fields.add_special_tokens is not False)
    else:
        model.check_token_ids(prompt, param)
        token_ids = prompt
    if not token_ids:
        raise bad_request(f"{param} is empty; send at least one token.", param)
    return token_ids


class CompletionAnswer(Answer):
    """Writes answers in the form of /v1/completions."""

    def __init__(self, model: ServedModel, ask: Ask, fields: CompletionFields) -> None:
        self._model = model
        self._ask = ask
        self._fields = fields
        self._texts = TokenTexts(model)
        self._echoes: dict[int, Echo] = {}  # by choice
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
            no_usage = {"usage": None} if self._fields.include_usage else {}
            begun: set[int] = set()
            async for came in answering.pieces():
                if came is None:
                    yield HEARTBEAT
                    continue
                choice, piece = came
                first = choice.index not in begun
                begun.add(choice.index)
                yield frame({**self._head, "choices": [self._choice(choice, piece, first=first)], **no_usage})
            if self._fields.include_usage:
                yield frame({**self._head, "choices": [], "usage": usage(self._ask.prompts, choices)})
            yield DONE
        finally:
            answering.close()

    def _choice(self, choice: Choice, piece: Piece, *, first: bool) -> dict[str, Any]:
        echo = self._echo(choice)
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

    def _echo(self, choice: Choice) -> Echo:
        if choice.index not in self._echoes:
            self._echoes[choice.index] = self._model.echo(choice.prompt_token_ids) if self._fields.echo else NO_ECHO
        return self._echoes[choice.index]

    def _logprobs(self, choice: Choice, piece: Piece, echo: Echo, *, first: bool) -> dict[str, list[Any]]:
        offsets = [len(echo.text) + offset for offset in piece.offsets]
        entries: list[TokenLogprob | None] = list(piece.logprobs)
        tokens = [entry.token_id for entry in piece.logprobs]
        if first and echo.offsets:
            offsets = [*echo.offsets, *offsets]
            tokens = [*choice.prompt_token_ids, *tokens]
            entries = [None, *choice.prompt_logprobs, *entries]  # nothing comes before the first token
        texts = self._texts
        return {
            "tokens": list(map(texts, tokens)),
            "token_logprobs": [entry and entry.logprob for entry in entries],
            "top_logprobs": [entry and {texts(token): logprob for token, logprob in entry.top} for entry in entries],
            "text_offset": offsets,
        }
