"""Ollama's paths: /api/chat, /api/generate, /api/embed, /api/tags, /api/show, /api/ps, /api/version."""

from __future__ import annotations

import time
from typing import Any

from litestar import Request, Response, get, post

from appliance.serving.access import key_of
from appliance.serving.answering import Answering, Ask, unless_gone
from appliance.serving.body import beside_others, read_body
from appliance.serving.field_origins import FieldOrigins
from appliance.serving.fields import read_fields
from appliance.serving.front_door import FrontDoor
from appliance.serving.ollama import answers, models, on_vllm
from appliance.serving.ollama.answer import LINES, ChatAnswer, GenerateAnswer, GenerationAnswer
from appliance.serving.ollama.embed import embed, embed_prompt
from appliance.serving.ollama.fields import (
    OLLAMA,
    GenerationFields,
    OllamaChatFields,
    OllamaGenerateFields,
    OllamaShowFields,
)
from appliance.serving.ollama.request import check_load, generation_ask, raw_ask, translate_chat, translate_generate
from appliance.serving.on_request.startable_profiles import model_named
from appliance.serving.parts import TheFrontDoor
from appliance.serving.respond import GENERATING, Answered, respond
from appliance.serving.served_model import ServedModel

AnyRequest = Request[Any, Any, Any]
AnsweredOrLoaded = Answered | Response[dict[str, Any]]


@post(
    "/api/chat",
    status_code=200,
    summary="Answer messages, as Ollama's API",
    body=OllamaChatFields,
    answer=answers.OllamaChatAnswer,
    streams=LINES,
    errors=GENERATING,
    error=answers.OllamaError,
)
async def chat(request: AnyRequest, front_door: TheFrontDoor) -> AnsweredOrLoaded:
    began = time.perf_counter()
    model = _served(front_door)
    body = await read_body(request)
    fields, ignored = await read_fields(body, OllamaChatFields, strict=model.strict_requests, api=OLLAMA)
    models.check_name(fields.model, model.name)
    answer = ChatAnswer(fields.model or model.name, shows_thinking=fields.think is not False, began=began)
    translated = await beside_others(body, lambda: translate_chat(fields, model.max_model_len, ignored))
    if not fields.messages:
        return _loaded(fields, answer, ignored.headers)
    if isinstance(model, on_vllm.VllmModel):
        content = on_vllm.chat_content(translated.chat, model, translated.origins)
        return await _answer_by_vllm(request, front_door, fields, content, translated.origins, answer, ignored.headers)
    ask = await generation_ask(translated, model, ignored)
    return await _answer(request, front_door, fields, ask, translated.origins, answer, ignored.headers)


@post(
    "/api/generate",
    status_code=200,
    summary="Complete a prompt, as Ollama's API",
    body=OllamaGenerateFields,
    answer=answers.OllamaGenerateAnswer,
    streams=LINES,
    errors=GENERATING,
    error=answers.OllamaError,
)
async def generate(request: AnyRequest, front_door: TheFrontDoor) -> AnsweredOrLoaded:
    began = time.perf_counter()
    model = _served(front_door)
    body = await read_body(request)
    fields, ignored = await read_fields(body, OllamaGenerateFields, strict=model.strict_requests, api=OLLAMA)
    models.check_name(fields.model, model.name)
    answer = GenerateAnswer(fields.model or model.name, shows_thinking=fields.think is not False, began=began)
    translated = translate_generate(fields, model.max_model_len, ignored)
    if not fields.prompt:
        return _loaded(fields, answer, ignored.headers)
    if isinstance(model, on_vllm.VllmModel):
        launch, _ = on_vllm.serving(front_door)
        if fields.raw:
            asked = on_vllm.raw_content(launch, translated.chat, fields.prompt, model)
            content = await unless_gone(request, asked)
        else:
            content = on_vllm.chat_content(translated.chat, model, translated.origins)
        return await _answer_by_vllm(request, front_door, fields, content, translated.origins, answer, ignored.headers)
    if fields.raw:
        ask = await raw_ask(translated, fields.prompt, model)
    else:
        ask = await generation_ask(translated, model, ignored)
    return await _answer(request, front_door, fields, ask, translated.origins, answer, ignored.headers)


@get(
    "/api/tags",
    summary="The models that a request may name, as Ollama's API lists them",
    answer=answers.OllamaModels,
    errors=(503,),
    error=answers.OllamaError,
)
async def tags(front_door: TheFrontDoor) -> dict[str, Any]:
    known = front_door.startable.read()
    running = [_served(front_door)] if front_door.serves or not known else []
    names = {model.name for model in running}
    idle = [await front_door.describe(each) for name, each in sorted(known.items()) if name not in names]
    return {"models": [*map(_listed, running), *(description.tag for description in idle)]}


@get(
    "/api/ps",
    summary="The served model, as Ollama's API lists running ones",
    answer=answers.OllamaRunningModels,
    errors=(503,),
    error=answers.OllamaError,
)
async def running(front_door: TheFrontDoor) -> dict[str, Any]:
    model = _served(front_door)
    return {"models": [model.running if isinstance(model, on_vllm.VllmModel) else models.running(model)]}


@post(
    "/api/show",
    status_code=200,
    summary="Describe the served model, as Ollama's API",
    body=OllamaShowFields,
    answer=answers.OllamaShownModel,
    errors=(404, 503),
    error=answers.OllamaError,
)
async def show(request: AnyRequest, front_door: TheFrontDoor) -> Response[dict[str, Any]]:
    body = await read_body(request)
    if (shown := await _shown_idle(front_door, body)) is not None:
        return Response(shown)
    model = _served(front_door)
    fields, ignored = await read_fields(body, OllamaShowFields, strict=model.strict_requests, api=OLLAMA)
    models.check_name(fields.model or fields.name, model.name)
    told = model.shown if isinstance(model, on_vllm.VllmModel) else models.shown_model(model)
    return Response(told, headers=ignored.headers)


@get(
    "/api/version",
    summary="The version of Ollama's API",
    answer=answers.OllamaVersion,
    error=answers.OllamaError,
)
async def version() -> dict[str, str]:
    return {"version": models.API_VERSION}


ROUTES = (chat, generate, embed, embed_prompt, tags, running, show, version)


def _served(front_door: FrontDoor) -> ServedModel | on_vllm.VllmModel:
    """Raises ApiError (503) when no engine is ready."""
    return on_vllm.serving(front_door)[1] if front_door.on_vllm else front_door.serving()[1]


def _listed(model: ServedModel | on_vllm.VllmModel) -> dict[str, Any]:
    return model.listed if isinstance(model, on_vllm.VllmModel) else models.listed(model)


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


async def _answer_by_vllm(
    request: AnyRequest,
    front_door: FrontDoor,
    fields: GenerationFields,
    content: dict[str, Any],
    origins: FieldOrigins,
    answer: GenerationAnswer,
    headers: dict[str, str],
) -> Answered:
    """To a request of messages, or of a prompt as it stands."""
    path = "/v1/chat/completions" if "messages" in content else "/v1/completions"
    stream = fields.stream is not False
    return await on_vllm.answered(
        request, front_door, path, content, answer, stream=stream, origins=origins, headers=headers
    )


def _loaded(fields: GenerationFields, answer: GenerationAnswer, headers: dict[str, str]) -> Response[dict[str, Any]]:
    check_load(fields)
    return Response(answer.loaded(), headers=headers)
