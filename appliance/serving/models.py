"""`GET /v1/models`: the served model and those that a request may start, as OpenAI describes models, or to Anthropic's
clients as Anthropic does."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from litestar import Request, get
from litestar.params import FromPath

from appliance.serving.anthropic.answers import AnthropicError
from appliance.serving.error_shape import VERSION_HEADER, asks_anthropic
from appliance.serving.front_door import FrontDoor
from appliance.serving.openapi import answers
from appliance.serving.parts import TheFrontDoor
from appliance.serving.served_model import ServedModel, check_name


@get(
    "/v1/models",
    summary="The models that a request may name",
    answer=(answers.ModelList, answers.AnthropicModelList),
    errors=(503,),
    error=(answers.Error, AnthropicError),
    headers=(VERSION_HEADER,),
)
async def list_models(request: Request[Any, Any, Any], front_door: TheFrontDoor) -> dict[str, Any]:
    """The one that runs comes first."""
    models = await _models(front_door)
    if asks_anthropic(request.scope):
        data = [_for_anthropic(model) for model in models]
        return {"data": data, "has_more": False, "first_id": data[0]["id"], "last_id": data[-1]["id"]}
    return {"object": "list", "data": models}


@get(
    "/v1/models/{name:path}",
    summary="A model that a request may name",
    answer=(answers.ServedModel, answers.AnthropicModel),
    errors=(404, 503),
    error=(answers.Error, AnthropicError),
    headers=(VERSION_HEADER,),
)
async def show_model(request: Request[Any, Any, Any], front_door: TheFrontDoor, name: FromPath[str]) -> dict[str, Any]:
    models = {model["id"]: model for model in await _models(front_door)}
    asked = name.removeprefix("/")
    check_name(asked, *models)
    return _for_anthropic(models[asked]) if asks_anthropic(request.scope) else models[asked]


async def _models(front_door: FrontDoor) -> list[dict[str, Any]]:
    """Raises ApiError (503) if none runs and none can be started."""
    known = front_door.startable.read()
    running = [_served(front_door)] if front_door.serves or not known else []
    ids = {model["id"] for model in running}
    idle = [await front_door.describe(known[name]) for name in sorted(known) if name not in ids]
    return [*running, *(description.told for description in idle)]


def _served(front_door: FrontDoor) -> dict[str, Any]:
    vllm = front_door.supervisor.vllm
    if vllm is not None and vllm.served is not None:
        named = {"id": vllm.served.name, "object": "model", "created": vllm.served.created, "owned_by": "ingot"}
        about = {"max_model_len": vllm.served.max_model_len, "device": vllm.served.device}
        return {**named, **about, "running": True}
    _, model = front_door.serving()
    return {**described(model), "running": True}


def _for_anthropic(served: dict[str, Any]) -> dict[str, Any]:
    created = datetime.fromtimestamp(served["created"], UTC)
    context = served.get("max_model_len")
    return {
        "type": "model",
        "id": served["id"],
        "display_name": served["id"],
        "created_at": created.isoformat().replace("+00:00", "Z"),
        "lifecycle": "active",
        "max_input_tokens": context,
        "max_tokens": context,
        "running": served["running"],
    }


def described(model: ServedModel) -> dict[str, Any]:
    return {
        "id": model.name,
        "object": "model",
        "created": model.created,
        "owned_by": "ingot",
        "max_model_len": model.max_model_len,
        "digest": model.digest,
        "dtype": model.dtype,
        "device": model.device,
    }
