"""`POST /v1/embeddings`: texts or token ids as vectors of length 1."""

from __future__ import annotations

import asyncio
import base64
import sys
from array import array
from typing import Annotated, Any, Final, Literal

from litestar import Request, Response, post
from msgspec import Meta

from appliance.serving.access import key_of
from appliance.serving.body import read_body
from appliance.serving.client_fields import DescriptiveFields
from appliance.serving.embedding import MAX_INPUTS, Embedder
from appliance.serving.errors import bad_request
from appliance.serving.fields import NO_TOOLS, OPENAI, Accepted, read_fields
from appliance.serving.json_list import json_list
from appliance.serving.openapi.answers import Embeddings
from appliance.serving.parts import TheFrontDoor
from appliance.serving.prompts import Prompts, check_prompts, encode_prompts
from appliance.serving.respond import GENERATING
from appliance.serving.stream import encode


class EmbeddingFields(DescriptiveFields, frozen=True, kw_only=True):
    input: Prompts
    model: str | None = None
    encoding_format: Literal["float", "base64"] | None = None
    dimensions: Annotated[int, Meta(ge=1, le=1 << 31)] | None = None
    add_special_tokens: bool | None = None
    cache_salt: Annotated[str, Meta(min_length=1, max_length=1024)] | None = None


VOCABULARY: Final = OPENAI._replace(
    partly_supported={
        "truncate_prompt_tokens": Accepted((), "the engine does not truncate prompts"),
        "normalize": Accepted((True,), "embeddings always have length 1"),
        "messages": Accepted((), "embeddings are of texts; send them as input"),
        "tools": Accepted(([],), NO_TOOLS),
    }
)


@post(
    "/v1/embeddings",
    status_code=200,
    summary="Embed texts",
    body=EmbeddingFields,
    answer=Embeddings,
    errors=GENERATING,
)
async def embeddings(request: Request[Any, Any, Any], front_door: TheFrontDoor) -> Response[bytes]:
    client, model = front_door.serving()
    body = await read_body(request)
    fields, ignored = await read_fields(body, EmbeddingFields, strict=model.strict_requests, api=VOCABULARY)
    model.check_name(fields.model)
    model.check_pooling()
    check_input(fields.input)
    special = fields.add_special_tokens is not False
    prompts = await encode_prompts(fields.input, "input", model, most=MAX_INPUTS, add_special_tokens=special)
    for index, prompt in enumerate(prompts):
        model.room(len(prompt), None, "input" if len(prompts) == 1 else f"input[{index}]")
    embedder = Embedder(client, model, front_door.metrics, key_of(request), fields.cache_salt)
    found = await embedder.embed(request, prompts, fields.dimensions)

    def write() -> bytes:
        as_text = fields.encoding_format == "base64"
        data = json_list(
            {"object": "embedding", "index": index, "embedding": written(each, as_text=as_text)}
            for index, each in enumerate(found)
        )
        tokens = sum(map(len, prompts))
        spent = {"prompt_tokens": tokens, "total_tokens": tokens}
        return encode({"object": "list", "data": data, "model": model.name, "usage": spent})

    async with front_door.encoding:
        answer = await asyncio.to_thread(write) if len(found) > 1 else write()
    return Response(answer, media_type="application/json", headers=ignored.headers)


def check_input(given: Prompts) -> None:
    """All that no model need be asked for. What would be embedded of an empty text is the special tokens alone. Raises
    ApiError."""
    check_prompts(given, "input", MAX_INPUTS)
    for index, text in enumerate([given] if isinstance(given, str) else given):
        if text == "":
            place = "input" if isinstance(given, str) else f"input[{index}]"
            raise bad_request(f"{place} is empty; send a text of at least one character.", place)


def written(embedding: array[float], *, as_text: bool) -> str | list[float]:
    """As numbers, or as the base64 text of little-endian 32-bit ones."""
    if not as_text:
        return embedding.tolist()
    values = array("f", embedding)
    if sys.byteorder == "big":
        values.byteswap()
    return base64.b64encode(values.tobytes()).decode()
