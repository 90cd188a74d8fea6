"""`POST /tokenize` and `POST /detokenize`, as vLLM has them: a prompt's tokens, and the text of tokens."""

from __future__ import annotations

import asyncio
from typing import Annotated, Any, Final

import msgspec
from litestar import Request, Response, post
from msgspec import Meta

from appliance.serving.body import read_body
from appliance.serving.chat_request import ChatFields, chat_prompt
from appliance.serving.errors import bad_request
from appliance.serving.fields import OPENAI, Ignored, read_fields
from appliance.serving.parts import TheFrontDoor
from appliance.serving.served_model import ServedModel

MAX_TOKENS: Final = 1 << 20
OF_MESSAGES: Final = ("tools", "add_generation_prompt", "chat_template_kwargs", "reasoning_effort", "enable_thinking")


class TokenizeFields(msgspec.Struct, frozen=True, kw_only=True):
    """Either `prompt` or `messages`. Those after them belong to messages."""

    model: str | None = None
    add_special_tokens: bool | None = None
    return_token_strs: bool | None = None
    prompt: str | None = None
    messages: list[dict[str, Any]] | None = None
    tools: Any = None
    add_generation_prompt: bool | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    reasoning_effort: str | None = None
    enable_thinking: bool | None = None


class DetokenizeFields(msgspec.Struct, frozen=True, kw_only=True):
    model: str | None = None
    tokens: list[Annotated[int, Meta(ge=0, le=1 << 31)]]


class Tokens(msgspec.Struct, forbid_unknown_fields=True):
    """The answer; nothing is encoded through it, nor through the next."""

    count: int
    max_model_len: int
    tokens: list[int]
    token_strs: list[str | None] | None


class TokensText(msgspec.Struct, forbid_unknown_fields=True):
    prompt: str


# What a client sends to /v1/chat/completions can be sent here as it stands.
VOCABULARY: Final = OPENAI._replace(
    without_effect=OPENAI.without_effect | set(ChatFields.__struct_fields__) - set(TokenizeFields.__struct_fields__)
)


@post(
    "/tokenize",
    status_code=200,
    summary="A prompt's tokens",
    body=TokenizeFields,
    answer=Tokens,
    errors=(404, 503),
)
async def tokenize(request: Request[Any, Any, Any], front_door: TheFrontDoor) -> Response[dict[str, Any]]:
    _, model = front_door.serving()
    body = await read_body(request)
    fields, ignored = await read_fields(body, TokenizeFields, strict=model.strict_requests, api=VOCABULARY)
    model.check_name(fields.model)
    tokens = await _encode(fields, model, ignored)

    def spell() -> list[str | None]:
        return [model.tokenizer.id_to_token(token) for token in tokens]

    spelt = await asyncio.to_thread(spell) if fields.return_token_strs else None
    answer = {"count": len(tokens), "max_model_len": model.max_model_len, "tokens": tokens, "token_strs": spelt}
    return Response(answer, headers=ignored.headers)


@post(
    "/detokenize",
    status_code=200,
    summary="The text of tokens",
    body=DetokenizeFields,
    answer=TokensText,
    errors=(404, 503),
)
async def detokenize(request: Request[Any, Any, Any], front_door: TheFrontDoor) -> Response[dict[str, Any]]:
    """Special tokens are part of the text."""
    _, model = front_door.serving()
    fields, ignored = await read_fields(await read_body(request), DetokenizeFields, strict=model.strict_requests)
    model.check_name(fields.model)
    if len(fields.tokens) > MAX_TOKENS:
        raise bad_request(f"tokens: {len(fields.tokens):,} ids are too many; send {MAX_TOKENS:,} or fewer.", "tokens")

    def decode() -> str:
        model.check_token_ids(fields.tokens, "tokens")
        return model.tokenizer.decode(fields.tokens, skip_special_tokens=False)

    return Response({"prompt": await asyncio.to_thread(decode)}, headers=ignored.headers)


async def _encode(fields: TokenizeFields, model: ServedModel, ignored: Ignored) -> list[int]:
    if fields.prompt is None and fields.messages is None:
        raise bad_request("prompt is missing; send it, or messages.", "prompt", "missing_field")
    if fields.prompt is not None and fields.messages is not None:
        raise bad_request("prompt and messages are two prompts; send one of them.", "prompt")
    if fields.prompt is not None:
        for name in OF_MESSAGES:
            if getattr(fields, name) is not None:
                ignored.add_unused(name)
        return await model.encode(fields.prompt, "prompt", add_special_tokens=fields.add_special_tokens is not False)
    chat = ChatFields(
        messages=fields.messages or [],
        tools=fields.tools,
        add_generation_prompt=fields.add_generation_prompt,
        chat_template_kwargs=fields.chat_template_kwargs,
        reasoning_effort=fields.reasoning_effort,
        enable_thinking=fields.enable_thinking,
    )
    prompt = await chat_prompt(chat, model, ignored)
    if fields.add_special_tokens:  # beside those that the template writes
        return await model.encode(prompt.text, "messages", add_special_tokens=True)
    return prompt.token_ids
