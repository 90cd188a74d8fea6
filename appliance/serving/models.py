"""`GET /v1/models`: what is served."""

from __future__ import annotations

from typing import Any

from litestar import get

from appliance.serving.front_door import FrontDoor
from appliance.serving.served_model import ServedModel


@get("/v1/models")
async def list_models(front_door: FrontDoor) -> dict[str, Any]:
    _, model = front_door.serving()
    return {"object": "list", "data": [_describe(model)]}


@get("/v1/models/{name:path}")
async def show_model(front_door: FrontDoor, name: str) -> dict[str, Any]:
    _, model = front_door.serving()
    model.check_name(name.removeprefix("/"))
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
