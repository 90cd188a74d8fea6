"""`GET /v1/models`: the served model."""

from __future__ import annotations

from typing import Any

from litestar import get

from appliance.serving.front_door import FrontDoor
from appliance.serving.openapi import answers
from appliance.serving.served_model import ServedModel, check_name


@get("/v1/models", summary="The served model, as a list", answer=answers.ModelList, errors=(503,))
async def list_models(front_door: FrontDoor) -> dict[str, Any]:
    return {"object": "list", "data": [_served(front_door)]}


@get(
    "/v1/models/{name:path}",
    summary="The served model",
    answer=answers.ServedModel,
    errors=(404, 503),
)
async def show_model(front_door: FrontDoor, name: str) -> dict[str, Any]:
    served = _served(front_door)
    check_name(name.removeprefix("/"), served["id"])
    return served


def _served(front_door: FrontDoor) -> dict[str, Any]:
    vllm = front_door.supervisor.vllm
    if vllm is not None and vllm.served is not None:
        described = {"id": vllm.served.name, "object": "model", "created": vllm.served.created, "owned_by": "ingot"}
        return {**described, "max_model_len": vllm.served.max_model_len, "device": vllm.served.device}
    _, model = front_door.serving()
    return _describe(model)


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
