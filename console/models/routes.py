"""The list of models."""

from __future__ import annotations

import asyncio
from dataclasses import replace

from litestar import get
from litestar.handlers import HTTPRouteHandler
from litestar.response import Template

from console.models.service import Model
from console.pages import page
from console.parts import Folder, PageRequest, Profiles, TheShelf


@get("/models")
async def model_list(request: PageRequest, home: Folder, shelf: TheShelf, profiles: Profiles) -> Template:
    used_by: dict[str, list[str]] = {}
    for summary in await profiles.summaries():
        used_by.setdefault(summary.model, []).append(summary.name)
    models = await asyncio.to_thread(shelf.models)
    return page(
        request,
        "models/list.html",
        title="Models",
        models=[_with_users(model, used_by) for model in models],
        folder=home.models,
    )


def _with_users(model: Model, used_by: dict[str, list[str]]) -> Model:
    return replace(model, used_by=tuple(used_by.get(model.name, ())))


route_handlers: list[HTTPRouteHandler] = [model_list]
