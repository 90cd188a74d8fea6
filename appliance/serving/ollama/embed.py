"""Ollama's `POST /api/embed`, and the older `POST /api/embeddings` with its one prompt."""

from __future__ import annotations

import asyncio
import time
from typing import Annotated, Any

import msgspec
from litestar import Request, Response, post
from msgspec import Meta

from appliance.engine_client.client import CoreClient
from appliance.serving.access import key_of
from appliance.serving.answering import unless_gone
from appliance.serving.body import read_body
from appliance.serving.embedding import MAX_INPUTS, Embedder
from appliance.serving.fields import Ignored, decode_part, read_fields
from appliance.serving.json_list import json_list
from appliance.serving.ollama import answers, models, on_vllm
from appliance.serving.ollama.fields import OLLAMA, Options
from appliance.serving.ollama.request import note_unload
from appliance.serving.parts import TheFrontDoor
from appliance.serving.prompts import check_prompts, encode_prompts
from appliance.serving.respond import GENERATING
from appliance.serving.served_model import ServedModel
from appliance.serving.stream import encode


class OllamaEmbedFields(msgspec.Struct, frozen=True, kw_only=True):
    input: str | list[str]
    model: str | None = None
    truncate: bool | None = None
    dimensions: Annotated[int, Meta(ge=0, le=1 << 31)] | None = None
    options: dict[str, Any] | None = None
    keep_alive: float | str | None = None
    cache_salt: Annotated[str, Meta(min_length=1, max_length=1024)] | None = None


class OllamaEmbeddingsFields(msgspec.Struct, frozen=True, kw_only=True):
    prompt: str
    model: str | None = None
    options: dict[str, Any] | None = None
    keep_alive: float | str | None = None
    cache_salt: Annotated[str, Meta(min_length=1, max_length=1024)] | None = None


@post(
    "/api/embed",
    status_code=200,
    summary="Embed texts, as Ollama's API",
    body=OllamaEmbedFields,
    answer=answers.OllamaEmbeddings,
    errors=GENERATING,
    error=answers.OllamaError,
)
async def embed(request: Request[Any, Any, Any], front_door: TheFrontDoor) -> Response[bytes]:
    began = time.perf_counter()
    if front_door.on_vllm:
        return await _embedded_by_vllm(request, front_door, began)
    client, model, fields, ignored = await _read(request, front_door, OllamaEmbedFields)
    texts = fields.input if isinstance(fields.input, list) else [fields.input]
    if fields.truncate is not False:
        texts = [text[: model.max_model_len * model.tokenizer.longest_token] for text in texts]
    prompts = await encode_prompts(texts, "input", model, most=MAX_INPUTS)
    if fields.truncate is not False:
        prompts = [_truncated(prompt, model) for prompt in prompts]
    for index, prompt in enumerate(prompts):
        model.room(len(prompt), None, f"input[{index}]")
    embedder = Embedder(client, model, front_door.metrics, key_of(request), fields.cache_salt)
    found = await embedder.embed(request, prompts, fields.dimensions or None)

    def write() -> bytes:
        return encode({
            "model": fields.model or model.name,
            "embeddings": json_list(each.tolist() for each in found),
            "total_duration": int((time.perf_counter() - began) * 1e9),
            "load_duration": 0,
            "prompt_eval_count": sum(map(len, prompts)),
        })  # fmt: skip

    async with front_door.encoding:
        answer = await asyncio.to_thread(write)
    return Response(answer, media_type="application/json", headers=ignored.headers)


@post(
    "/api/embeddings",
    status_code=200,
    summary="Embed one text, as the older path of Ollama's API",
    body=OllamaEmbeddingsFields,
    answer=answers.OllamaEmbedding,
    errors=GENERATING,
    error=answers.OllamaError,
)
async def embed_prompt(request: Request[Any, Any, Any], front_door: TheFrontDoor) -> Response[bytes]:
    if front_door.on_vllm:
        return await _prompt_embedded_by_vllm(request, front_door)
    client, model, fields, ignored = await _read(request, front_door, OllamaEmbeddingsFields)
    text = fields.prompt[: model.max_model_len * model.tokenizer.longest_token]
    prompts = [_truncated(prompt, model) for prompt in await encode_prompts(text, "prompt", model, most=1)]
    embedder = Embedder(client, model, front_door.metrics, key_of(request), fields.cache_salt)
    (found,) = await embedder.embed(request, prompts, None)
    body = encode({"embedding": found.tolist()})
    return Response(body, media_type="application/json", headers=ignored.headers)


async def _read(
    request: Request[Any, Any, Any], front_door: TheFrontDoor, type: Any
) -> tuple[CoreClient, ServedModel, Any, Ignored]:
    client, model = front_door.serving()
    fields, ignored = await _fields(request, type, model.name, strict=model.strict_requests)
    model.check_pooling()
    return client, model, fields, ignored


async def _fields(request: Request[Any, Any, Any], type: Any, name: str, *, strict: bool) -> tuple[Any, Ignored]:
    fields, ignored = await read_fields(await read_body(request), type, strict=strict, api=OLLAMA)
    models.check_name(fields.model, name)
    check_embed(fields, ignored)
    return fields, ignored


def check_embed(fields: OllamaEmbedFields | OllamaEmbeddingsFields, ignored: Ignored) -> None:
    """All that no model need be asked for. Raises ApiError."""
    decode_part(fields.options or {}, Options, "options", ignored)
    if isinstance(fields, OllamaEmbedFields):
        check_prompts(fields.input, "input", MAX_INPUTS)
    note_unload(fields.keep_alive, ignored)


async def _embedded_by_vllm(request: Request[Any, Any, Any], front_door: TheFrontDoor, began: float) -> Response[bytes]:
    launch, model = on_vllm.serving(front_door)
    fields, ignored = await _fields(request, OllamaEmbedFields, model.name, strict=model.strict_requests)
    texts = fields.input if isinstance(fields.input, list) else [fields.input]
    asked = on_vllm.embed(
        launch,
        model,
        texts,
        truncate=fields.truncate is not False,
        dimensions=fields.dimensions or None,
        cache_salt=fields.cache_salt,
    )
    found, num_tokens = await unless_gone(request, asked)
    body = encode({
        "model": fields.model or model.name,
        "embeddings": found,
        "total_duration": int((time.perf_counter() - began) * 1e9),
        "load_duration": 0,
        "prompt_eval_count": num_tokens,
    })  # fmt: skip
    return Response(body, media_type="application/json", headers=ignored.headers)


async def _prompt_embedded_by_vllm(request: Request[Any, Any, Any], front_door: TheFrontDoor) -> Response[bytes]:
    launch, model = on_vllm.serving(front_door)
    fields, ignored = await _fields(request, OllamaEmbeddingsFields, model.name, strict=model.strict_requests)
    asked = on_vllm.embed(launch, model, [fields.prompt], cache_salt=fields.cache_salt)
    (found,), _ = await unless_gone(request, asked)
    return Response(encode({"embedding": found}), media_type="application/json", headers=ignored.headers)


def _truncated(prompt: list[int], model: ServedModel) -> list[int]:
    """What fits, with the token that the tokenizer puts at the end, as models pool there."""
    most = model.max_model_len - 1
    if len(prompt) <= most:
        return prompt
    end = prompt[-1:] if prompt[-1] in model.tokenizer.special_ids else []
    return prompt[: most - len(end)] + end
