"""Prompts as OpenAI's API spells them: a text, texts, token ids, or lists of token ids."""

from __future__ import annotations

import asyncio
from typing import Annotated, Any

from msgspec import Meta

from appliance.serving.errors import ApiError, bad_request
from appliance.serving.served_model import ServedModel, is_short

TokenId = Annotated[int, Meta(ge=0, le=1 << 31)]
Prompts = str | list[str | TokenId | list[TokenId]]


async def encode_prompts(
    given: str | list[Any], param: str, model: ServedModel, *, most: int, add_special_tokens: bool = True
) -> list[list[int]]:
    """Their token ids; other requests do not wait for long ones, or for many. Raises ApiError."""

    def encode() -> list[list[int]]:
        prompts = check_prompts(given, param, most)
        return [_encode(prompt, model, place, add_special_tokens) for prompt, place in prompts]

    return encode() if is_short(given) else await asyncio.to_thread(encode)


def check_prompts(given: str | list[Any], param: str, most: int) -> list[tuple[str | list[int], str]]:
    """The four spellings as one: prompts, each with the name of its field. Raises ApiError."""
    if isinstance(given, str):
        return [(given, param)]
    kinds = {type(part) for part in given}
    if not given or len(kinds) > 1:
        raise bad_request(f"{param} is not valid; use a string, strings, token ids, or lists of token ids.", param)
    if kinds == {int}:
        return [(given, param)]
    if len(given) > most:
        raise bad_request(f"{param}: {len(given):,} prompts are too many; send {most:,} or fewer.", param)
    prompts = [(part, f"{param}[{index}]") for index, part in enumerate(given)]
    for part, place in prompts:
        if part == []:
            raise _empty(place)
    return prompts


def _encode(prompt: str | list[int], model: ServedModel, param: str, add_special_tokens: bool) -> list[int]:
    if isinstance(prompt, str):
        token_ids = model.encode_at_once(prompt, param, add_special_tokens=add_special_tokens)
    else:
        model.check_token_ids(prompt, param)
        token_ids = prompt
    if not token_ids:
        raise _empty(param)
    return token_ids


def _empty(param: str) -> ApiError:
    return bad_request(f"{param} is empty; send at least one token.", param)
