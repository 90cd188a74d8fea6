"""Ollama's paths: /api/chat, /api/generate, /api/embed, /api/tags, /api/show, /api/ps, /api/version."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from litestar import Request, Response, get, post

from appliance.engine_client.client import CoreClient
from appliance.engines import engine_named
from appliance.serving.access import key_of
from appliance.serving.answering import Answering, Ask
from appliance.serving.body import beside_others, read_body
from appliance.serving.errors import ApiError, bad_request
from appliance.serving.field_origins import FieldOrigins
from appliance.serving.fields import read_fields
from appliance.serving.front_door import FrontDoor
from appliance.serving.ollama import answers, models
from appliance.serving.ollama.answer import LINES, ChatAnswer, GenerateAnswer, GenerationAnswer
from appliance.serving.ollama.embed import embed, embed_prompt
from appliance.serving.ollama.fields import (
    OLLAMA,
    GenerationFields,
    OllamaChatFields,
    OllamaGenerateFields,
    OllamaShowFields,
)
from appliance.serving.ollama.request import generation_ask, raw_ask, translate_chat, translate_generate, unloads
from appliance.serving.on_request.startable_profiles import model_named
from appliance.serving.parts import TheFrontDoor
from appliance.serving.respond import GENERATING, Answered, respond
from appliance.serving.served_model import ServedModel

if TYPE_CHECKING:
    from appliance.profile.startable import Startable

AnyRequest = Request[Any, Any, Any]
AnsweredOrLoaded = Answered | Response[dict[str, Any]]


@post(
    "/api/chat",
    status_code=200,
    summary="Answer messages, as Ollama's API",
    body=OllamaChatFields,
    answer=answers.OllamaChatAnswer,
    streams=LINES,
    errors=(*GENERATING, 501),
    error=answers.OllamaError,
)
async def chat(request: AnyRequest, front_door: TheFrontDoor) -> AnsweredOrLoaded:
    began = time.perf_counter()
    _, model = _serving(front_door)
    body = await read_body(request)
    fields, ignored = await read_fields(body, OllamaChatFields, strict=model.strict_requests, api=OLLAMA)
    models.check_name(fields.model, model)
    answer = ChatAnswer(fields.model or model.name, shows_thinking=fields.think is not False, began=began)
    translated = await beside_others(body, lambda: translate_chat(fields, model, ignored))
    if not fields.messages:
        return _loaded(fields, answer, ignored.headers)
    ask = await generation_ask(translated, model, ignored)
    return await _answer(request, front_door, fields, ask, translated.origins, answer, ignored.headers)


@post(
    "/api/generate",
    status_code=200,
    summary="Complete a prompt, as Ollama's API",
    body=OllamaGenerateFields,
    answer=answers.OllamaGenerateAnswer,
    streams=LINES,
    errors=(*GENERATING, 501),
    error=answers.OllamaError,
)
async def generate(request: AnyRequest, front_door: TheFrontDoor) -> AnsweredOrLoaded:
    began = time.perf_counter()
    _, model = _serving(front_door)
    body = await read_body(request)
    fields, ignored = await read_fields(body, OllamaGenerateFields, strict=model.strict_requests, api=OLLAMA)
    models.check_name(fields.model, model)
    answer = GenerateAnswer(fields.model or model.name, shows_thinking=fields.think is not False, began=began)
    translated = translate_generate(fields, model, ignored)
    if not fields.prompt:
        return _loaded(fields, answer, ignored.headers)
    if fields.raw:
        ask = await raw_ask(translated, fields.prompt, model)
    else:
        ask = await generation_ask(translated, model, ignored)
    return await _answer(request, front_door, fields, ask, translated.origins, answer, ignored.headers)


@get(
    "/api/tags",
    summary="The models that a request may name, as Ollama's API lists them",
    answer=answers.OllamaModels,
    errors=(501, 503),
    error=answers.OllamaError,
)
async def tags(front_door: TheFrontDoor) -> dict[str, Any]:
    known = front_door.startable.read()
    if not known:
        _, model = _serving(front_door)
        return {"models": [models.listed(model)]}
    running = [front_door.serving()[1]] if front_door.serves and not front_door.on_vllm else []
    names = {model.name for model in running}
    native = [each for name, each in sorted(known.items()) if name not in names and not _on_vllm(each)]
    idle = [await front_door.describe(each) for each in native]
    return {"models": [*map(models.listed, running), *(description.tag for description in idle)]}


@get(
    "/api/ps",
    summary="The served model, as Ollama's API lists running ones",
    answer=answers.OllamaRunningModels,
    errors=(501, 503),
    error=answers.OllamaError,
)
async def running(front_door: TheFrontDoor) -> dict[str, Any]:
    _, model = _serving(front_door)
    return {"models": [models.running(model)]}


@post(
    "/api/show",
    status_code=200,
    summary="Describe the served model, as Ollama's API",
    body=OllamaShowFields,
    answer=answers.OllamaShownModel,
    errors=(404, 501, 503),
    error=answers.OllamaError,
)
async def show(request: AnyRequest, front_door: TheFrontDoor) -> Response[dict[str, Any]]:
    body = await read_body(request)
    if (shown := await _shown_idle(front_door, body)) is not None:
        return Response(shown)
    _, model = _serving(front_door)
    fields, ignored = await read_fields(body, OllamaShowFields, strict=model.strict_requests, api=OLLAMA)
    models.check_name(fields.model or fields.name, model)
    return Response(models.shown_model(model), headers=ignored.headers)


@get(
    "/api/version",
    summary="The version of Ollama's API",
    answer=answers.OllamaVersion,
    error=answers.OllamaError,
)
async def version() -> dict[str, str]:
    return {"version": models.API_VERSION}


ROUTES = (chat, generate, embed, embed_prompt, tags, running, show, version)


def _serving(front_door: TheFrontDoor) -> tuple[CoreClient, ServedModel]:
    if front_door.on_vllm:
        message = "Ollama's API is available with `engine: native` only. Use /v1/chat/completions or /v1/messages."
        raise ApiError(501, message, code="not_with_vllm")
    return front_door.serving()


async def _shown_idle(front_door: FrontDoor, body: bytes) -> dict[str, Any] | None:
    """Of a model that a request may start, and that does not run; None of any other."""
    known = front_door.startable.read()
    if not known:
        return None
    fields, _ = await read_fields(body, OllamaShowFields, strict=False, api=OLLAMA)
    name = model_named(fields.model or fields.name or "", known, tagged=True)
    if name is None or name == front_door.swapper.running:
        return None
    return (await front_door.describe(known[name])).shown or None


def _on_vllm(startable: Startable) -> bool:
    return engine_named(startable.engine).own_server


async def _answer(
    request: AnyRequest,
    front_door: TheFrontDoor,
    fields: GenerationFields,
    ask: Ask,
    origins: FieldOrigins,
    answer: GenerationAnswer,
    headers: dict[str, str],
) -> Answered:
    """Streamed unless the client says otherwise."""
    client, model = front_door.serving()
    with origins.in_errors():
        answering = Answering(client, model, front_door.metrics, ask, key_of(request))
    return await respond(request, answering, answer, stream=fields.stream is not False, headers=headers)


def _loaded(fields: GenerationFields, answer: GenerationAnswer, headers: dict[str, str]) -> Response[dict[str, Any]]:
    if unloads(fields.keep_alive):
        message = "keep_alive: no request unloads the model; stop the engine in the console."
        raise bad_request(message, "keep_alive", "unsupported_field")
    return Response(answer.loaded(), headers=headers)
