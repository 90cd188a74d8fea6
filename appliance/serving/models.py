"""`GET /v1/models`: the served model, as OpenAI describes models, or to Anthropic's clients as Anthropic does."""

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
    summary="The served model, as a list",
    answer=(answers.ModelList, answers.AnthropicModelList),
    errors=(503,),
    error=(answers.Error, AnthropicError),
    headers=(VERSION_HEADER,),
)
async def list_models(request: Request[Any, Any, Any], front_door: TheFrontDoor) -> dict[str, Any]:
    served = _served(front_door)
    if asks_anthropic(request.scope):
        return {"data": [_for_anthropic(served)], "has_more": False, "first_id": served["id"], "last_id": served["id"]}
    return {"object": "list", "data": [served]}


@get(
    "/v1/models/{name:path}",
    summary="The served model",
    answer=(answers.ServedModel, answers.AnthropicModel),
    errors=(404, 503),
    error=(answers.Error, AnthropicError),
    headers=(VERSION_HEADER,),
)
async def show_model(request: Request[Any, Any, Any], front_door: TheFrontDoor, name: FromPath[str]) -> dict[str, Any]:
    served = _served(front_door)
    check_name(name.removeprefix("/"), served["id"])
    return _for_anthropic(served) if asks_anthropic(request.scope) else served


def _served(front_door: FrontDoor) -> dict[str, Any]:
    vllm = front_door.supervisor.vllm
    if vllm is not None and vllm.served is not None:
        described = {"id": vllm.served.name, "object": "model", "created": vllm.served.created, "owned_by": "ingot"}
        return {**described, "max_model_len": vllm.served.max_model_len, "device": vllm.served.device}
    _, model = front_door.serving()
    return _describe(model)


def _for_anthropic(served: dict[str, Any]) -> dict[str, Any]:
    created = datetime.fromtimestamp(served["created"], UTC)
    context = served["max_model_len"]
    return {
        "type": "model",
        "id": served["id"],
        "display_name": served["id"],
        "created_at": created.isoformat().replace("+00:00", "Z"),
        "lifecycle": "active",
        "max_input_tokens": context,
        "max_tokens": context,
    }


def _describe(model: ServedModel) -> dict[str, Any]:
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
